"""TensorFlow's end of `training`: plain variables in a state, Horovod's collectives.

Gradients are `keras_gradients`' business. Imports TensorFlow; Horovod is imported when a group is formed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from jupyter_elastic.errors import BadRequest
from jupyter_elastic.training.group import Array, Horovod
from jupyter_elastic.training.state import Tracked

# --- parts of a state -------------------------------------------------------------------------------------------------


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


def is_dataset(data: Any) -> bool:
    """TensorFlow's data sets are streams: none can be taken by index."""
    if isinstance(data, tf.data.Dataset):
        raise BadRequest(
            "training.batches needs samples that can be taken by number, and a tf.data.Dataset is a stream. Pass "
            "arrays as (x, y), or a sequence with __len__ and __getitem__."
        )
    return False


def random_state() -> Any:
    """TensorFlow's generators can't be put back."""
    return None


def set_random_state(state: Any) -> None:
    """Nothing to put back."""


# --- the group --------------------------------------------------------------------------------------------------------


class HorovodGroup(Horovod):
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
