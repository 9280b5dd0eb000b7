"""Horovod's collectives by PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import horovod.torch as hvd
import numpy as np
import torch

from jupyter_elastic.engines.horovod.groups import HorovodGroup
from jupyter_elastic.training.group import Array
from jupyter_elastic.types.errors import EngineError

if TYPE_CHECKING:
    from jupyter_elastic.engines.horovod.worker import HorovodWorker


_KNOWN = {getattr(torch, name) for name in "uint8 int8 int32 int64 float16 float32 float64".split()}  # noqa: SIM905


class FrameworkGroup(HorovodGroup):
    """Horovod's collectives by PyTorch's tensors; bytes and arrays travel on the host."""

    def __init__(self, worker: HorovodWorker | None) -> None:
        super().__init__(hvd, worker)

    def broadcast(self, data: bytes) -> bytes:
        """Return rank 0's `data` on every member."""
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
        """Return the sum over all members."""
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        result: Array = hvd.allreduce(tensor, name="elastic.total", op=hvd.Sum).numpy()
        return result

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """Send each rank its part, and return the parts received."""
        given = torch.from_numpy(np.frombuffer(b"".join(parts), dtype=np.uint8).copy())
        splits = torch.tensor([len(part) for part in parts], dtype=torch.int32)
        taken, lengths = hvd.alltoall(given, splits, name="elastic.exchange")
        return [bytes(part.numpy().tobytes()) for part in taken.split(lengths.tolist())]

    def allreduce(self, tensors: Sequence[Any], *, name: str, mean: bool = False) -> list[Any]:
        """Return each tensor's sum or mean over all members, one message for each type and device."""
        by_kind: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        reduced = [_known(tensor) for tensor in tensors]
        for tensor in reduced:
            by_kind.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        how = hvd.Average if mean else hvd.Sum
        handles = [
            hvd.grouped_allreduce_async_(alike, name=f"{name}.{number}", op=how)
            for number, alike in enumerate(by_kind.values())
        ]
        for handle in handles:
            hvd.synchronize(handle)
        return [
            torch.view_as_complex(tensor).to(given.dtype) if given.is_complex() else tensor.to(given.dtype)
            for tensor, given in zip(reduced, tensors, strict=True)
        ]


def _known(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as Horovod takes it: pairs for complex numbers, 32 bits for its other floats.

    Raises:
        EngineError: Horovod can't add up such tensors.
    """
    dense = tensor.layout == torch.strided
    if tensor.is_complex() and dense:
        return torch.view_as_real(tensor.to(torch.promote_types(tensor.dtype, torch.complex64)).resolve_conj())
    if tensor.dtype in _KNOWN and dense:
        return tensor
    if not (tensor.is_floating_point() and dense):
        what = str(tensor.dtype if dense else tensor.layout).removeprefix("torch.")
        raise EngineError(f"Horovod can't add up tensors of {what}. Run the cell with `--engine torch`.")
    return tensor.float()
