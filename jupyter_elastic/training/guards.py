"""Combinations that train wrongly without a word are refused, with the reason and the way out.

The worker calls `install()` before it runs a cell. Imports no framework: a module that isn't loaded yet is guarded when
the cell loads it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

from jupyter_elastic.errors import EngineError

GUARDED = "horovod._keras"
"""Where both `horovod.keras` and `horovod.tensorflow.keras` (and `horovod.tensorflow`, for Keras) make an optimizer."""


def install() -> None:
    """Guard this process; calling it again changes nothing."""
    module = sys.modules.get(GUARDED)
    if module is not None:
        _guard(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def refusal(optimizer: Any) -> str:
    """Why Horovod's wrapper can't be used for this optimizer; empty when it can."""
    version = _keras_3(optimizer)
    if not version:
        return ""
    return (
        f"hvd.DistributedOptimizer does nothing on Keras {version}: with fit and with apply_gradients alike each "
        "worker would train its own model, apart from the others, without any error. Use `step = "
        "training.keras.train_step(model, optimizer, loss)` from jupyter_elastic.training with the plain optimizer, or "
        "hvd.DistributedGradientTape; or run the cell with `--env TF_USE_LEGACY_KERAS=1` and tf-keras, where "
        "hvd.DistributedOptimizer works."
    )


def _keras_3(optimizer: Any) -> str:
    """Keras' version if the optimizer is one of Keras 3 or later."""
    keras = sys.modules.get("keras")
    version = str(getattr(keras, "__version__", getattr(getattr(keras, "version", None), "__version__", "")))
    if not version or int(version.split(".", 1)[0]) < 3:
        return ""
    kind = getattr(getattr(keras, "optimizers", None), "Optimizer", None)
    return version if kind is not None and isinstance(optimizer, kind) else ""


def _guard(module: types.ModuleType) -> None:
    original = module.create_distributed_optimizer
    if getattr(original, "guarded", False):
        return

    @functools.wraps(original)
    def create_distributed_optimizer(keras: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        reason = refusal(optimizer)
        if reason:
            raise EngineError(reason)
        return original(keras, optimizer, *args, **kwargs)

    create_distributed_optimizer.guarded = True  # type: ignore[attr-defined]
    module.create_distributed_optimizer = create_distributed_optimizer  # type: ignore[attr-defined]


class _Finder(importlib.abc.MetaPathFinder):
    """Guards the module right after it was loaded, by whomever."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != GUARDED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        module: types.ModuleType | None = self.inner.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        self.inner.exec_module(module)
        _guard(module)
