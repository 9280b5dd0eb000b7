"""Combinations that train wrongly without a word are joined, or refused with the reason and the way out.

The worker calls `install()` before it runs a cell. Imports no framework: a module that isn't loaded yet is guarded when
the cell loads it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence


def install() -> None:
    """Guard this process; calling it again changes nothing."""
    waiting = {}
    for name, patch in PATCHES.items():
        module = sys.modules.get(name)
        if module is None:
            waiting[name] = patch
        else:
            patch(module)
    if waiting and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(waiting))


def _fit(keras: types.ModuleType) -> None:
    from jupyter_elastic.training import keras_fit

    keras_fit.put_into(keras)


def _horovods(module: types.ModuleType) -> None:
    from jupyter_elastic.training import keras_horovod

    keras_horovod.PATCHES[module.__name__](module)


PATCHES: dict[str, Callable[[types.ModuleType], None]] = {
    "keras": _fit,
    "tf_keras": _fit,
    "horovod._keras": _horovods,
    "horovod._keras.callbacks": _horovods,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Guards a module right after it was loaded, by whomever."""

    def __init__(self, patches: dict[str, Callable[[types.ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._patches:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            patch, execute = self._patches[name], spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
