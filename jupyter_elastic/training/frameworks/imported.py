"""Finds our modules for the frameworks that this process has imported, and lets them take a state's objects.

Knows frameworks by their names; must not import a framework that the cell has not imported.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from jupyter_elastic.training.frameworks.tracked import Tracked
from jupyter_elastic.types.errors import BadRequest

_FRAMEWORKS = {"keras": ("keras", "tf_keras"), "torch": ("torch",), "tensorflow": ("tensorflow",)}
"""Our module for each framework, and the modules whose presence means that the cell uses the framework. On Keras' torch
backend a model is a module of PyTorch's too: Keras is asked first."""


def frameworks() -> list[Any]:
    """Return our modules for the frameworks that this process has imported."""
    return [
        importlib.import_module(f"jupyter_elastic.training.frameworks.{name}")
        for name, modules in _FRAMEWORKS.items()
        if any(module in sys.modules for module in modules)
    ]


def seed(place: Sequence[int]) -> None:
    """Seed every generator by a position in the training: (seed, epoch, pass, step, logical worker)."""
    number = int(np.random.SeedSequence(place).generate_state(1)[0])
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002  the legacy generator is the one that cells draw from
    for framework in frameworks():
        if hasattr(framework, "seed"):
            framework.seed(number)


def torch_support() -> Any:
    """Return our module for PyTorch."""
    return importlib.import_module("jupyter_elastic.training.frameworks.torch")


def sharding_support() -> Any:
    """Return our module for sharded objects.

    Raises:
        BadRequest: There is no PyTorch here, or it is too old.
    """
    try:
        return importlib.import_module("jupyter_elastic.training.frameworks.sharded")
    except ImportError as problem:
        raise BadRequest(f"training.State(factory=...) needs PyTorch with FSDP2, from 2.6 on: {problem}.") from problem


def tracked(value: Any) -> Tracked | None:
    """Return the part of a state that a framework's object is; None for a plain value."""
    if isinstance(value, int | float | str | bytes | bool | list | tuple | dict | None):
        return None
    for framework in frameworks():
        part: Tracked | None = framework.tracked(value)
        if part is not None:
            return part
    return None


def complete(parts: dict[str, Tracked]) -> None:
    """Let a framework complete objects that need several objects (a Keras optimizer needs its model)."""
    for framework in frameworks():
        completing = getattr(framework, "complete", None)
        if completing is not None:
            completing(list(parts.values()))
