"""PyTorch's tensors leave a device and come back, each object the same: models and optimizers stay valid.

All tensors that live in this process are found, whoever holds them, and those that share memory share it afterwards
too. What is no Python object any more can't be found: what autograd has saved for a `backward` to come, the buckets of
`DistributedDataParallel`, CUDA graphs. Imports PyTorch only where the process has.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any, Protocol


class Device(Protocol):
    """A kind of device as far as parking needs it."""

    def holds(self, storage: Any) -> bool:
        """Whether a `torch.UntypedStorage` is on such a device."""
        ...

    def to_host(self, storage: Any) -> Any:
        """A copy of it on the host."""
        ...

    def to_device(self, storage: Any, where: Any) -> Any:
        """A copy of a host's storage on the device that `place` has named."""
        ...

    def place(self, storage: Any) -> Any:
        """Which device a storage is on."""
        ...

    def release(self) -> None:
        """Give back what is cached."""
        ...

    def used(self) -> int:
        """Bytes that the process still has there, as far as they are allocations of tensors."""
        ...


class Cuda:
    """NVIDIA's and AMD's, as PyTorch names both. Run on NVIDIA's."""

    def holds(self, storage: Any) -> bool:
        """Whether it is on a GPU."""
        return bool(storage.device.type == "cuda")

    def place(self, storage: Any) -> Any:
        """Its `torch.device`."""
        return storage.device

    def to_host(self, storage: Any) -> Any:
        """A copy in host memory."""
        return storage.cpu()

    def to_device(self, storage: Any, where: Any) -> Any:
        """A copy on this GPU."""
        return storage.to(device=where)

    def release(self) -> None:
        """Empty the caches of the allocator and of cuBLAS."""
        torch: Any = sys.modules["torch"]
        torch.cuda.synchronize()
        if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()

    def used(self) -> int:
        """What the allocator has reserved."""
        torch: Any = sys.modules["torch"]
        return int(torch.cuda.memory_reserved()) if torch.cuda.is_initialized() else 0


class TensorParking:
    """The tensors of this process, on a device or parked on the host."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._parked: list[tuple[Any, Any, list[Any]]] = []
        """Of each storage: its place, its copy on the host, and weak references to the tensors in it."""

    def park(self) -> int:
        """Bring all to the host; bytes that could not leave. Once more: what has come there since."""
        if "torch" not in sys.modules:
            return 0
        self._move()
        gc.collect()
        self._device.release()
        return self._device.used()

    def restore(self) -> None:
        """Bring back those that live; an error (no room there) leaves the rest parked."""
        while self._parked:
            place, copy, references = self._parked[-1]
            tensors = [tensor for reference in references if (tensor := reference()) is not None]
            if tensors:
                there = self._device.to_device(copy, place)
                for tensor in tensors:
                    _put(tensor, there)
            self._parked.pop()

    def _move(self) -> None:  # apart, so that none of its names holds a storage any more
        for storage, tensors in self._found().values():
            place, copy = self._device.place(storage), self._device.to_host(storage)
            for tensor in tensors:
                _put(tensor, copy)
            self._parked.append((place, copy, [weakref.ref(tensor) for tensor in tensors]))

    def _found(self) -> dict[int, tuple[Any, list[Any]]]:
        torch: Any = sys.modules["torch"]
        found: dict[int, tuple[Any, list[Any]]] = {}
        for thing in gc.get_objects():
            if not issubclass(type(thing), torch.Tensor):  # some objects answer for their `__class__` with a warning
                continue
            for tensor in (thing, thing.grad if thing.is_leaf else None):
                if tensor is None or tensor.layout != torch.strided or tensor.is_meta:
                    continue
                storage = tensor.untyped_storage()
                if storage.nbytes() and self._device.holds(storage):
                    tensors = found.setdefault(storage._cdata, (storage, []))[1]
                    if not any(known is tensor for known in tensors):
                        tensors.append(tensor)
        return found


def _put(tensor: Any, storage: Any) -> None:
    """Let the tensor be what it is in another storage."""
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        moved = torch.empty(0, dtype=tensor.dtype, device=storage.device)
        moved.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        tensor.data = moved
