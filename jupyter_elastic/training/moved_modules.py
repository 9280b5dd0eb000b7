"""Imports modules of this folder by the names that they had before they moved.

Cells and the commits of running jobs name them so: a commit with a model of PyTorch's pickles a class of
`training.torch`. Each old name is the same module, never a second copy.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_FOLDER = "jupyter_elastic.training"
_FRAMEWORKS = (
    *("accelerate", "device_memory", "independent", "keras", "keras_fit", "keras_gradients", "lightning", "logical"),
    *("parameter_servers", "samplers", "sharded", "tensorflow", "torch"),
)
_UNEQUAL = ("exchange", "local_shards", "samples")
MOVED = {
    **{f"{_FOLDER}.{name}": f"{_FOLDER}.frameworks.{name}" for name in _FRAMEWORKS},
    **{f"{_FOLDER}.{name}": f"{_FOLDER}.unequal.{name}" for name in _UNEQUAL},
    f"{_FOLDER}.ended": f"{_FOLDER}.ended_trainings",
    f"{_FOLDER}.session": f"{_FOLDER}.link",
    f"{_FOLDER}.tracked": f"{_FOLDER}.frameworks.framework",
}
"""New dotted name by old one."""


class MovedModules(MetaPathFinder, Loader):
    """An import hook that gives the moved module for its old name."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  the signature of an import hook
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return a spec for an old name, None for any other."""
        return importlib.util.spec_from_loader(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module by its new name."""
        module = importlib.import_module(MOVED[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it has run under its new name; its spec stays its own."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state
