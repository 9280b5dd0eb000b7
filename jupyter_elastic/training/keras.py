"""Keras' end of `training`: Keras 3 on TensorFlow and legacy tf-keras. Parts of a state, Horovod's collectives.

Gradients are `keras_gradients`' business. Imports TensorFlow; Horovod is imported when a ring is formed.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from jupyter_elastic.errors import BadRequest, EngineError
from jupyter_elastic.training.keras_gradients import TrainStep, build, drop_unfinished, raw, reducer_of, train_step
from jupyter_elastic.training.ring import Array, Horovod
from jupyter_elastic.training.state import Part

__all__ = [
    "HorovodRing",
    "TrainStep",
    "complete",
    "is_dataset",
    "part",
    "random_state",
    "set_random_state",
    "train_step",
]

# --- parts of a state -------------------------------------------------------------------------------------------------


def _kinds(name: str) -> tuple[Any, ...]:
    """The classes `name` ("Model", "optimizers.Optimizer") of the Keras versions that are in use here."""
    found = []
    for module in ("keras", "tf_keras"):
        value: Any = sys.modules.get(module)
        for word in name.split("."):
            value = getattr(value, word, None)
        if value is not None:
            found.append(value)
    return tuple(found)


class _Variables:
    """A Keras model or optimizer: its variables, in order."""

    framework: str | None = "keras"

    def __init__(self, value: Any, *, is_model: bool) -> None:
        self.value, self.is_model = value, is_model

    def variables(self) -> list[Any]:
        found = self.value.variables
        return [raw(variable) for variable in (found() if callable(found) else found)]

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
        """Drop what is held of an unfinished step."""
        drop_unfinished(self.value)


def part(value: Any) -> Part | None:
    """The part of a state that a Keras object is, or None."""
    if isinstance(value, TrainStep):
        raise BadRequest("Keep the train step outside of training.State; its model and optimizer belong into it.")
    if isinstance(value, _kinds("Model")):
        if not value.built:
            raise BadRequest(
                "This Keras model has no weights yet, so the workers could not start from the same ones. Begin it with "
                "keras.Input(...), or call model.build(input_shape) before training.State(model=model)."
            )
        return _Variables(value, is_model=True)
    if isinstance(value, (*_kinds("optimizers.Optimizer"), *_kinds("optimizers.legacy.Optimizer"))):
        reducer_of(value)
        return _Variables(value, is_model=False)
    if isinstance(value, tf.Variable):
        return _Single(value)
    return None


class _Single:
    """A plain TensorFlow variable."""

    framework: str | None = "keras"

    def __init__(self, value: Any) -> None:
        self.value = value

    def capture(self) -> Array:
        captured: Array = self.value.numpy()
        return captured

    def apply(self, captured: Array) -> None:
        self.value.assign(captured)

    def reset(self) -> None:
        """Nothing to drop."""


def complete(parts: list[Part]) -> None:
    """Build optimizers that have no variables yet with the state's one model."""
    models = [p.value for p in parts if isinstance(p, _Variables) and p.is_model]
    if len(models) != 1:
        return
    for p in parts:
        if isinstance(p, _Variables) and not p.is_model:
            build(p.value, models[0])


def is_dataset(data: Any) -> bool:
    """TensorFlow's data sets are streams: none can be taken by index."""
    if isinstance(data, tf.data.Dataset):
        raise BadRequest(
            "training.batches needs samples that can be taken by number, and a tf.data.Dataset is a stream. Pass "
            "arrays as (x, y), or a sequence with __len__ and __getitem__."
        )
    return False


def random_state() -> Any:
    """TensorFlow's generators can't be put back; Keras' seeds are variables of the model."""
    return None


def set_random_state(state: Any) -> None:
    """Nothing to put back."""


# --- the ring ---------------------------------------------------------------------------------------------------------


class HorovodRing(Horovod):
    """Horovod's collectives by TensorFlow's tensors on the host."""

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        super().__init__(hvd)

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's `data`, everywhere."""
        with tf.device("CPU:0"):
            length = np.frombuffer(
                len(data).to_bytes(8, "big"), np.uint8
            )  # of one type: another is slow the first time
            heard = self.hvd.broadcast(tf.constant(length), 0, name="elastic.length")
            count = int.from_bytes(heard.numpy().tobytes(), "big")
            own = np.frombuffer(data, np.uint8) if self.rank() == 0 else np.zeros(count, np.uint8)
            content = self.hvd.broadcast(tf.constant(own), 0, name="elastic.content")
        return bytes(content.numpy().tobytes())

    def total(self, values: Array) -> Array:
        """The sum over all members."""
        with tf.device("CPU:0"):
            summed = self.hvd.allreduce(tf.constant(values), name="elastic.total", op=self.hvd.Sum)
        result: Array = summed.numpy()
        return result
