"""Horovod's collectives by TensorFlow's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow.mpi_ops import _grouped_allreduce

from jupyter_elastic.engines.horovod.groups import HorovodGroup
from jupyter_elastic.training.group import Array

if TYPE_CHECKING:
    from jupyter_elastic.engines.horovod.worker import HorovodWorker


class FrameworkGroup(HorovodGroup):
    """Horovod's collectives by TensorFlow's tensors; bytes and arrays travel on the host."""

    def __init__(self, worker: HorovodWorker | None) -> None:
        super().__init__(hvd, worker)

    def broadcast(self, data: bytes) -> bytes:
        """Return rank 0's `data` on every member."""
        with tf.device("CPU:0"):
            length = np.frombuffer(
                len(data).to_bytes(8, "big"), np.uint8
            )  # of one type: another is slow the first time
            received = hvd.broadcast(tf.constant(length), 0, name="elastic.length")
            count = int.from_bytes(received.numpy().tobytes(), "big")
            own = np.frombuffer(data, np.uint8) if self.rank() == 0 else np.zeros(count, np.uint8)
            content = hvd.broadcast(tf.constant(own), 0, name="elastic.content")
        return bytes(content.numpy().tobytes())

    def total(self, values: Array) -> Array:
        """Return the sum over all members."""
        with tf.device("CPU:0"):
            summed = hvd.allreduce(tf.constant(values), name="elastic.total", op=hvd.Sum)
        result: Array = summed.numpy()
        return result

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """Send each rank its part, and return the parts received."""
        with tf.device("CPU:0"):
            given = tf.constant(np.frombuffer(b"".join(parts), np.uint8))
            splits = tf.constant([len(part) for part in parts], tf.int32)
            taken, lengths = hvd.alltoall(given, splits, name="elastic.exchange")
        ends = np.cumsum(lengths.numpy())
        content = taken.numpy().tobytes()
        return [content[end - length : end] for end, length in zip(ends, lengths.numpy(), strict=True)]

    def allreduce(self, tensors: Sequence[Any], *, name: str, mean: bool = False) -> list[Any]:
        """Return each tensor's sum or mean over all members, one message for each type; within a traced step too."""
        result, by_type = list(tensors), dict[Any, list[int]]()
        for index, tensor in enumerate(tensors):
            by_type.setdefault(tensor.dtype, []).append(index)
        how = hvd.Average if mean else hvd.Sum
        for number, indices in enumerate(by_type.values()):
            alike = [result[index] for index in indices]
            reduced = _grouped_allreduce(alike, name=f"{name}.{number}", op=how, ignore_name_scope=True)
            for index, tensor in zip(indices, reduced, strict=True):
                result[index] = tensor
        return result
