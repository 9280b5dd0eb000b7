"""Finds out what Keras is here: its versions, their classes, a model's backend, optimizers and variables.

Keras 3 on any backend and legacy tf-keras. Knows no group and trains nothing; imports no framework.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

UNBUILT = (
    "This Keras model has no weights yet, so the workers could not start from the same ones. Begin it with "
    "keras.Input(...), or call model.build(input_shape), before training.State(model=model) and before fit."
)


def kinds(name: str) -> tuple[Any, ...]:
    """Return the classes `name` ("Model", "optimizers.Optimizer") of the Keras versions that are in use here."""
    found = []
    for module in ("keras", "tf_keras"):
        value: Any = sys.modules.get(module)
        for word in name.split("."):
            value = getattr(value, word, None)
        if value is not None:
            found.append(value)
    return tuple(found)


def is_optimizer(value: Any) -> bool:
    """Return True for an optimizer of any Keras."""
    return isinstance(value, (*kinds("optimizers.Optimizer"), *kinds("optimizers.legacy.Optimizer")))


def backend_of(value: Any) -> str:
    """Return the backend of a model or an optimizer: `tensorflow`, `torch`, `jax`, ..."""
    keras = sys.modules.get("keras")
    of_keras_3 = any(kind.__module__.split(".", 1)[0] == "keras" for kind in type(value).__mro__)
    if keras is None or not of_keras_3 or not version_of(keras):
        return "tensorflow"
    return str(keras.backend.backend())


def version_of(keras: Any) -> str:
    """Return a Keras module's version if it is 3 or later, else an empty text."""
    version = str(getattr(keras, "__version__", getattr(getattr(keras, "version", None), "__version__", "")))
    return version if version and int(version.split(".", 1)[0]) >= 3 else ""


def variables_of(value: Any) -> list[Any]:
    """Return all variables of a model or an optimizer; legacy optimizers have a method for it."""
    found = value.variables
    return list(found() if callable(found) else found)


def build(optimizer: Any, model: Any) -> None:
    """Make the optimizer's own variables now, so that they can be shared out and nothing is traced twice."""
    if not getattr(optimizer, "built", False) and hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)


def keras_of(model: Any) -> Any:
    """Return the Keras module of a model."""
    return sys.modules["keras" if isinstance(model, getattr(sys.modules.get("keras"), "Model", ())) else "tf_keras"]


def optimizers_of(model: Any) -> Iterable[Any]:
    """Yield the model's optimizers: it may have several (adversarial models), and one may be wrapped in another."""
    for value in list(vars(model).values()):
        if is_optimizer(value):
            yield value
            inner = getattr(value, "inner_optimizer", None)
            if inner is not None:
                yield inner
