"""Finds the frameworks that this process has imported, and lets them take a state's objects.

Knows frameworks by the names of their entry points, which are those of their modules; must not import a framework that
the cell has not imported.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np

from jupyter_elastic.platform import entry_points
from jupyter_elastic.platform.imports import after_import
from jupyter_elastic.training.frameworks.framework import Framework, Tracked
from jupyter_elastic.types.errors import BadRequest

FRAMEWORKS = "jupyter_elastic.frameworks"
_LAST = ("keras", "tf_keras", "torch", "tensorflow")
"""This package's frameworks, in the order in which they are asked for their objects: on Keras' torch backend a model is
a module of PyTorch's too. Those of other packages, which may be built on these, come before."""


def guard() -> None:
    """Let each framework prepare this worker, as soon as the cell has imported it."""
    _installed.cache_clear()
    for name in _installed(tuple(sys.path)):
        after_import(name, lambda module, name=name: _made(name).guard(module))  # type: ignore[misc]


def frameworks() -> list[Framework]:
    """Return the frameworks that this process has imported.

    Raises:
        EngineError: The class of a framework can't be loaded, or two packages offer the same framework.
    """
    return list(dict.fromkeys(_made(name) for name in _installed(tuple(sys.path)) if name in sys.modules))


@functools.cache
def _installed(path: tuple[str, ...]) -> dict[str, list[EntryPoint]]:  # noqa: ARG001  the packages are found by it
    found = entry_points.installed(FRAMEWORKS)
    return {name: found[name] for name in sorted(found, key=lambda name: _LAST.index(name) if name in _LAST else -1)}


def _made(name: str) -> Framework:
    return _of_class(entry_points.load(_installed(tuple(sys.path))[name]))


@functools.cache
def _of_class(kind: type[Framework]) -> Framework:
    return kind()


def seed(place: Sequence[int]) -> None:
    """Seed every generator by a position in the training: (seed, epoch, pass, step, logical worker)."""
    number = int(np.random.SeedSequence(place).generate_state(1)[0])
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002  the legacy generator is the one that cells draw from
    for framework in frameworks():
        framework.seed(number)


def torch_support() -> Any:
    """Return our module for PyTorch's gradients and its logical workers."""
    from jupyter_elastic.training.frameworks import torch_gradients

    return torch_gradients


def sharding_support() -> Any:
    """Return our module for sharded objects.

    Raises:
        BadRequest: There is no PyTorch here.
    """
    try:
        from jupyter_elastic.training.frameworks import sharded
    except ImportError as problem:
        raise BadRequest(f"training.State(factory=...) needs PyTorch with FSDP2: {problem}.") from problem
    return sharded


def tracked(value: Any) -> Tracked | None:
    """Return the part of a state that a framework's object is; None for a plain value."""
    if isinstance(value, int | float | str | bytes | bool | list | tuple | dict | None):
        return None
    return next((part for framework in frameworks() if (part := framework.tracked(value)) is not None), None)


def complete(parts: dict[str, Tracked]) -> None:
    """Let the frameworks complete objects that need several objects."""
    for framework in frameworks():
        framework.complete(list(parts.values()))
