"""Horovod's collectives by PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import horovod.torch as hvd
import numpy as np
import torch

from jupyter_elastic.engines.horovod.groups import HorovodGroup
from jupyter_elastic.training.group import Array

if TYPE_CHECKING:
    from jupyter_elastic.engines.horovod.worker import HorovodWorker


class FrameworkGroup(HorovodGroup):
    """Horovod's collectives by PyTorch's tensors; bytes and arrays travel on the host."""

    def __init__(self, worker: HorovodWorker | None) -> None:
        super().__init__(hvd, worker)

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's `data`, everywhere."""
        length = torch.tensor([len(data)], dtype=torch.int64)
        hvd.broadcast_(length, 0, name="elastic.length")
        count = int(length.item())
        content = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if self.rank() == 0
            else torch.empty(count, dtype=torch.uint8)
        )
        hvd.broadcast_(content, 0, name="elastic.content")
        return bytes(content.numpy().tobytes())

    def total(self, values: Array) -> Array:
        """The sum over all members."""
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        result: Array = hvd.allreduce(tensor, name="elastic.total", op=hvd.Sum).numpy()
        return result

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """Send each rank its part."""
        given = torch.from_numpy(np.frombuffer(b"".join(parts), dtype=np.uint8).copy())
        splits = torch.tensor([len(part) for part in parts], dtype=torch.int32)
        taken, lengths = hvd.alltoall(given, splits, name="elastic.exchange")
        return [bytes(part.numpy().tobytes()) for part in taken.split(lengths.tolist())]

    def allreduce(self, tensors: Sequence[Any], *, name: str, mean: bool = False) -> list[Any]:
        """Each tensor's sum or mean over all members, one message for each type and device."""
        by_kind: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        # Horovod knows no bfloat16.
        reduced = [tensor.float() if tensor.dtype == torch.bfloat16 else tensor for tensor in tensors]
        for tensor in reduced:
            by_kind.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        how = hvd.Average if mean else hvd.Sum
        handles = [
            hvd.grouped_allreduce_async_(alike, name=f"{name}.{number}", op=how)
            for number, alike in enumerate(by_kind.values())
        ]
        for handle in handles:
            hvd.synchronize(handle)
        return [tensor.to(given.dtype) for tensor, given in zip(reduced, tensors, strict=True)]
