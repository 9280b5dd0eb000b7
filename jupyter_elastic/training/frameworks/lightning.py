"""Refuses Lightning's `Trainer` and `Fabric` on one device in a job of several: each worker would train its own model.

On CPUs one device is their default under torchrun too; if they see the job's GPUs they choose DDP by themselves.
Imports no Lightning: it is guarded when the cell loads it.
"""

from __future__ import annotations

import functools
import os
import types
from typing import Any

from jupyter_elastic.platform.imports import after_import, before
from jupyter_elastic.types.errors import EngineError

_BEGIN = {"Trainer": "fit", "Fabric": "setup"}
_MODULES = {
    "lightning.pytorch.trainer.trainer": "Trainer",
    "pytorch_lightning.trainer.trainer": "Trainer",
    "lightning.fabric.fabric": "Fabric",
    "lightning_fabric.fabric": "Fabric",
}


def guard() -> None:
    """Guard this process, a worker of several."""
    for module, kind in _MODULES.items():
        after_import(module, functools.partial(_guard, kind))


def _guard(name: str, module: types.ModuleType) -> None:
    kind = getattr(module, name)
    make = kind.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, *args, **kwargs)
        # A user who names a strategy for one device means it.
        given = kwargs.get("strategy", args[1] if len(args) > 1 else "auto")  # Trainer takes keywords only
        self._elastic_apart = given == "auto" and self.world_size == 1

    def check(self: Any, *_: Any, **__: Any) -> None:
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size > 1 and getattr(self, "_elastic_apart", False):
            raise EngineError(
                f"this {name} trains on one device, and the job has {size} workers: each would train a model of its "
                f'own, apart from the others. Write {name}(strategy="ddp", devices=world_size) to train together; '
                f'{name}(strategy=SingleDeviceStrategy("cpu")), with its device, is apart on purpose; or run the cell '
                "with --gpus 1"
            )

    kind.__init__ = __init__
    before(kind, _BEGIN[name], check)
