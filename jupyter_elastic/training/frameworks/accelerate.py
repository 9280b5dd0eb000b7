"""Joins Accelerate's `Accelerator` to a job of several workers, or refuses its model.

On CPUs an `Accelerator` is one process by default, under torchrun too, and so is what is built on it (transformers,
trl, fastai). `notebook_launcher` would start workers of its own on every one of ours: instead each of ours calls the
function. Imports no Accelerate.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable
from typing import Any

from jupyter_elastic.platform.imports import after_import, before
from jupyter_elastic.training.context import context
from jupyter_elastic.training.ranks import workers
from jupyter_elastic.types.errors import EngineError


def guard(*, cpu: bool) -> None:
    """Guard this process, a worker of several; `cpu`: it has no device, and joins unless the user chose otherwise."""
    if cpu:
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    after_import("accelerate.launchers", _guard)
    after_import("accelerate.accelerator", lambda module: before(module.Accelerator, "prepare_model", _refuse))


def _refuse(accelerator: Any, *_: Any, **__: Any) -> None:
    if accelerator.num_processes == 1 and (size := workers()) > 1 and not context.apart:
        raise EngineError(
            f"this Accelerator is one process by itself, and the job has {size} workers: each would train a model of "
            "its own, apart from the others. Run the cell with `--env ACCELERATE_USE_CPU=true` to train together on "
            "CPUs, or with --gpus 1"
        )


def _guard(module: types.ModuleType) -> None:
    @functools.wraps(module.notebook_launcher)
    def notebook_launcher(
        function: Callable[..., Any], args: tuple[Any, ...] = (), num_processes: int | None = None, *_: Any, **__: Any
    ) -> None:
        size = workers()
        if num_processes not in {None, size}:
            raise EngineError(
                f"notebook_launcher(num_processes={num_processes}) in a job of {size} workers: they are its processes. "
                f"Write num_processes=world_size, or run the cell with --gpus {num_processes}"
            )
        function(*args)

    module.notebook_launcher = notebook_launcher  # type: ignore[attr-defined]
