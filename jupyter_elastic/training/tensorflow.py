"""TensorFlow's end of `training`: plain variables in a state. Gradients are `keras_gradients`' business."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from jupyter_elastic.training.data import stack
from jupyter_elastic.training.group import Array
from jupyter_elastic.training.tracked import Tracked
from jupyter_elastic.types.errors import BadRequest

dense = tf.convert_to_tensor
"""A gradient as collectives take it."""
not_converted = tf.autograph.experimental.do_not_convert


def tracked(value: Any) -> Tracked | None:
    """The part of a state that a plain TensorFlow variable is, or None."""
    return _Single(value) if isinstance(value, tf.Variable) else None


class _Single:
    """A plain TensorFlow variable."""

    framework: str | None = "tensorflow"

    def __init__(self, value: Any) -> None:
        self.value = value

    def capture(self) -> Array:
        captured: Array = self.value.numpy()
        return captured

    def apply(self, captured: Array) -> None:
        self.value.assign(captured)

    def reset(self) -> None:
        """Nothing to drop."""


def collate_for(data: Any) -> None:
    """Refuse TensorFlow's data sets: they are streams, and none can be taken by index."""
    if isinstance(data, tf.data.Dataset):
        raise BadRequest(
            "training.batches needs samples that can be taken by number, and a tf.data.Dataset is a stream. Pass "
            "arrays as (x, y), or a sequence with __len__ and __getitem__."
        )


def indexable(data: Any) -> Any:
    """A TensorFlow data set as arrays, read once; anything else as it is.

    Raises:
        BadRequest: It has no end, or nobody knows how long it is.
    """
    if not isinstance(data, tf.data.Dataset):
        return data
    count = int(data.cardinality())
    if count < 0:
        raise BadRequest(
            "This tf.data.Dataset has no end, or does not say where it is, and samples that may move are known by "
            "number. Bound it with `.take(n)` (or say so by `tf.data.experimental.assert_cardinality`), without "
            "`.repeat()` and `.batch()`; or pass arrays."
        )
    return stack(list(data.as_numpy_iterator()))
