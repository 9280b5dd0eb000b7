"""Runs a function on a module as soon as it is imported, without importing it here."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_AT_START = {"__main__", "encodings", "site", "sitecustomize", "usercustomize", "jupyter_elastic"}
Patch = Callable[[types.ModuleType], None]


def after_import(name: str, patch: Patch) -> None:
    """Call `patch` with the module: now if it is loaded, else right after its import."""
    module = sys.modules.get(name)
    if module is not None:
        patch(module)
    else:
        sys.meta_path.insert(0, AfterImport({name: patch}))


def before(owner: Any, name: str, check: Callable[..., object]) -> None:
    """Replace a function of `owner` by one that calls `check` first, with the same arguments."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return real(*args, **kwargs)

    setattr(owner, name, checked)


def forget_shadowed(folder: str) -> None:
    """Unload modules that a folder, the first on `sys.path`, replaces, so that they are imported from there.

    Modules that Python loads before any script, or has built in, stay: Python would not import others either.
    """
    there = {path.name.partition(".")[0] for path in Path(folder).iterdir()}
    for name in there & sys.modules.keys() - _AT_START:
        if name in sys.builtin_module_names or importlib.machinery.FrozenImporter.find_spec(name) is not None:
            continue
        found = importlib.machinery.PathFinder.find_spec(name, [folder])
        loaded = getattr(sys.modules[name].__spec__, "origin", None)
        if found is not None and found.loader is not None and found.origin != loaded:
            for gone in [other for other in sys.modules if other == name or other.startswith(f"{name}.")]:
                del sys.modules[gone]


class AfterImport(importlib.abc.MetaPathFinder):
    """An import hook that runs a patch right after a module of that name was executed."""

    def __init__(self, patches: dict[str, Patch]) -> None:
        self._patches = patches

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: types.ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of the other finders, with a loader that patches the loaded module."""
        if fullname not in self._patches:
            return None
        patch = self._patches.pop(fullname)
        # All finders are asked, so that another patch of the same module runs too; this one has no entry meanwhile.
        spec = importlib.util.find_spec(fullname)
        self._patches[fullname] = patch  # a caller of find_spec need not import the module
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
