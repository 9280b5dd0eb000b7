"""Accelerate's `notebook_launcher` in a job of several workers: they are there already, each calls the function.

As it stands it would start workers of its own on every one of ours. Imports no Accelerate.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable
from typing import Any

from jupyter_elastic.platform.imports import after_import
from jupyter_elastic.types.errors import EngineError


def guard() -> None:
    """Guard this process, a worker of several."""
    after_import("accelerate.launchers", _guard)


def _guard(module: types.ModuleType) -> None:
    @functools.wraps(module.notebook_launcher)
    def notebook_launcher(
        function: Callable[..., Any], args: tuple[Any, ...] = (), num_processes: int | None = None, *_: Any, **__: Any
    ) -> None:
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if num_processes not in {None, size}:
            raise EngineError(
                f"notebook_launcher(num_processes={num_processes}) in a job of {size} workers: they are its processes. "
                f"Write num_processes=world_size, or run the cell with --gpus {num_processes}"
            )
        function(*args)

    module.notebook_launcher = notebook_launcher  # type: ignore[attr-defined]
