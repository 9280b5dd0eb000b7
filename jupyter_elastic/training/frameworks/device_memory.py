"""Moves PyTorch's tensors off a device and back, each object the same: models and optimizers stay valid.

All tensors that live in this process are found, whoever holds them, and those that share memory share it afterwards
too. Memory without a Python object can't be found: what autograd has saved for a later `backward`, the buckets of
`DistributedDataParallel`, CUDA graphs. Imports PyTorch only if the process has.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any, Protocol


class Device(Protocol):
    """A kind of device, as parking needs it."""

    def holds(self, storage: Any) -> bool:
        """Return True if a `torch.UntypedStorage` is on such a device."""
        ...

    def to_host(self, storage: Any) -> Any:
        """Return a copy of the storage on the host."""
        ...

    def to_device(self, storage: Any, where: Any) -> Any:
        """Return a copy of a host's storage on the device that `place` has named."""
        ...

    def place(self, storage: Any) -> Any:
        """Return the device of a storage."""
        ...

    def release(self) -> None:
        """Release the cached memory."""
        ...

    def used(self) -> int:
        """Return the bytes of the process on the device, as far as they are allocations of tensors."""
        ...


class Cuda:
    """GPUs of NVIDIA and AMD, as PyTorch names both. Run on NVIDIA's."""

    def holds(self, storage: Any) -> bool:
        """Return True if the storage is on a GPU."""
        return bool(storage.device.type == "cuda")

    def place(self, storage: Any) -> Any:
        """Return the storage's `torch.device`."""
        return storage.device

    def to_host(self, storage: Any) -> Any:
        """Return a copy in host memory."""
        return storage.cpu()

    def to_device(self, storage: Any, where: Any) -> Any:
        """Return a copy on this GPU."""
        return storage.to(device=where)

    def release(self) -> None:
        """Empty the caches of the allocator and of cuBLAS."""
        torch: Any = sys.modules["torch"]
        torch.cuda.synchronize()
        if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()

    def used(self) -> int:
        """Return the bytes that the allocator has reserved."""
        torch: Any = sys.modules["torch"]
        return int(torch.cuda.memory_reserved()) if torch.cuda.is_initialized() else 0


class TensorParking:
    """The tensors of this process, on a device or parked on the host."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._parked: list[tuple[Any, Any, list[Any]]] = []
        """Each storage's device, its copy on the host, and weak references to the tensors in it."""

    def park(self) -> int:
        """Move all tensors to the host; return the bytes that could not leave. A further call moves new ones."""
        if "torch" not in sys.modules:
            return 0
        self._move()
        gc.collect()
        self._device.release()
        return self._device.used()

    def restore(self) -> None:
        """Move living tensors back; after an error (no room there) the rest stays parked."""
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
    """Point the tensor to another storage, otherwise unchanged."""
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        moved = torch.empty(0, dtype=tensor.dtype, device=storage.device)
        moved.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        tensor.data = moved
