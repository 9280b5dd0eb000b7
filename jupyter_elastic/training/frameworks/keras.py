"""Keras in a cell: `distributed` for `model.fit`, `train_step` for a loop of one's own, and Keras' parts of a state.

Keras 3 on any backend and legacy tf-keras. Imports no framework: `keras_gradients` and `tensorflow` are for TensorFlow,
`torch` is for PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jupyter_elastic.training.frameworks import keras_fit, keras_versions
from jupyter_elastic.training.frameworks.framework import Framework, Tracked
from jupyter_elastic.training.frameworks.keras_fit import apart, averages, distributed
from jupyter_elastic.training.group import Array
from jupyter_elastic.types.errors import BadRequest, EngineError

if TYPE_CHECKING:
    from jupyter_elastic.training.frameworks.keras_gradients import TrainStep

__all__ = ["apart", "distributed", "train_step"]


def train_step(model: Any, optimizer: Any, loss: Any) -> TrainStep:
    """Return a step for a loop of one's own: `for x, y in training.batches(...): loss = step(x, y)`.

    It takes the mean of the gradients over the whole batch, on all workers, and is traced once for every number of
    workers.

    Args:
        model: A Keras model that is built.
        optimizer: A plain Keras optimizer, not one that averages by itself.
        loss: One of Keras', or any function of `(y, predicted)` that gives a mean over the samples.

    Returns:
        A function of `(x, y)`, arrays or tensors with samples along the first axis. Its value is the mean loss of this
        worker's share, a scalar tensor.

    Raises:
        EngineError: Keras does not run on TensorFlow.
    """
    backend = keras_versions.backend_of(model)
    if backend != "tensorflow":
        raise EngineError(
            f"Keras runs on {backend!r} here, and training.keras.train_step needs TensorFlow. Set "
            "KERAS_BACKEND=tensorflow (`%%distribute --env KERAS_BACKEND=tensorflow`); on the torch backend, use "
            "training.keras.distributed(optimizer) with model.fit, or PyTorch's own loop."
        )
    from jupyter_elastic.training.frameworks.keras_gradients import TrainStep

    return TrainStep(model, optimizer, loss)


# --- parts of a state -------------------------------------------------------------------------------------------------


class _Variables:
    """The variables of a model or an optimizer, in their order."""

    def __init__(self, value: Any, *, is_model: bool) -> None:
        self.value = value
        self.is_model = is_model
        self.framework: str | None = keras_versions.backend_of(value)

    def variables(self) -> list[Any]:
        return keras_versions.variables_of(self.value)

    def capture(self) -> list[Array]:
        return [variable.numpy() for variable in self.variables()]

    def apply(self, captured: list[Array]) -> None:
        variables = self.variables()
        if len(variables) != len(captured):
            raise EngineError(
                f"A Keras {'model' if self.is_model else 'optimizer'} has {len(variables)} variables here and "
                f"{len(captured)} in the commit: make it the same way on every worker, from the same cell."
            )
        for variable, value in zip(variables, captured, strict=True):
            variable.assign(value)

    def reset(self) -> None:
        """Drop the gradients of an unfinished step."""
        gradients = _gradients()
        if gradients is not None:
            gradients.drop_unfinished(self.value)


def _prepare(optimizer: Any) -> None:
    if averages(optimizer):
        return
    backend = keras_versions.backend_of(optimizer)
    if backend != "tensorflow":
        raise BadRequest(
            f"On Keras' {backend} backend, training.State takes a Keras optimizer that is made for model.fit: "
            "training.keras.distributed(optimizer). For a loop of your own, take one of torch.optim."
        )
    from jupyter_elastic.training.frameworks.keras_gradients import reducer_of

    reducer_of(optimizer)


def _gradients() -> Any:
    """Return our module for TensorFlow's gradients, if it is loaded."""
    return sys.modules.get("jupyter_elastic.training.frameworks.keras_gradients")


class Keras(Framework):
    """Keras 3 on any backend, and legacy tf-keras: models and optimizers."""

    def guard(self, module: ModuleType) -> None:
        """Join or refuse Keras' `fit`, which would silently train a model on each worker."""
        keras_fit.put_into(module)

    def tracked(self, value: Any) -> Tracked | None:
        """Return the part of a state that a Keras object is, or None."""
        gradients = _gradients()
        if gradients is not None and isinstance(value, gradients.TrainStep):
            raise BadRequest("Keep the train step outside of training.State; its model and optimizer belong into it.")
        if isinstance(value, keras_versions.kinds("Model")):
            if not value.built:
                raise BadRequest(keras_versions.UNBUILT)
            return _Variables(value, is_model=True)
        if keras_versions.is_optimizer(value):
            _prepare(value)
            return _Variables(value, is_model=False)
        return None

    def complete(self, parts: Sequence[Tracked]) -> None:
        """Build optimizers that have no variables yet with the state's one model."""
        models = [p.value for p in parts if isinstance(p, _Variables) and p.is_model]
        if len(models) != 1:
            return
        for p in parts:
            if isinstance(p, _Variables) and not p.is_model:
                keras_versions.build(p.value, models[0])
