"""TensorFlow's part of `training`: plain variables in a state. `keras_gradients` handles gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from jupyter_elastic.training.data import stack
from jupyter_elastic.training.frameworks.framework import Framework, Tracked
from jupyter_elastic.training.group import Array
from jupyter_elastic.types.errors import BadRequest

dense = tf.convert_to_tensor
"""Returns a gradient as collectives take it."""
not_converted = tf.autograph.experimental.do_not_convert


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
        """Do nothing: there is nothing to drop."""


def _of_batches(data: Any) -> bool:
    """Return True if the elements are batches, by the last `batch` or `unbatch`."""
    while True:
        kind = type(data).__name__.lower()
        if "unbatch" in kind or "flatmap" in kind:
            return False
        if "batch" in kind:
            return True
        before = data._inputs() if hasattr(data, "_inputs") else []
        if len(before) != 1:
            return False
        (data,) = before


def _empty(spec: Any) -> Array:
    shape = [size or 0 for size in spec.shape]
    none: Array = np.zeros((0, *shape), spec.dtype.as_numpy_dtype)
    return none


class TensorFlow(Framework):
    """TensorFlow: plain variables, and data sets that have an end."""

    def tracked(self, value: Any) -> Tracked | None:
        """Return the part of a state that a plain TensorFlow variable is, or None."""
        return _Single(value) if isinstance(value, tf.Variable) else None

    def collate_for(self, data: Any) -> None:
        """Refuse TensorFlow's data sets: they are streams, and none can be taken by index."""
        if isinstance(data, tf.data.Dataset):
            raise BadRequest(
                "training.batches needs samples that can be taken by number, and a tf.data.Dataset is a stream. Pass "
                "arrays as (x, y), or a sequence with __len__ and __getitem__."
            )

    def indexable(self, data: Any) -> Any:
        """Return a TensorFlow data set as arrays, read once; anything else as it is.

        A data set of batches counts by its samples. If samples have parts within parts, or are of different shapes, the
        result is a list of them.

        Raises:
            BadRequest: The data set has no end, or its length is unknown.
        """
        if not isinstance(data, tf.data.Dataset):
            return data
        if int(data.cardinality()) < 0:
            raise BadRequest(
                "This tf.data.Dataset has no end, or does not say where it is, and samples that may move are known by "
                "number. Bound it with `.take(n)` (or say so by `tf.data.experimental.assert_cardinality`), without "
                "`.repeat()`; or pass arrays."
            )
        if _of_batches(data):
            data = data.unbatch()
        samples, spec = list(data.as_numpy_iterator()), data.element_spec
        parts = tuple(spec.values()) if isinstance(spec, dict) else spec if isinstance(spec, tuple) else ()
        if any(isinstance(part, tuple | dict) for part in parts):
            return samples
        if not samples:
            return tf.nest.map_structure(_empty, spec)
        try:
            return stack(samples)
        except ValueError:  # of different shapes
            return samples
