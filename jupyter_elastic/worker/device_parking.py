"""Moves a session's worker off its GPU before the slot is given back, and restores it in the next cell.

Two strategies are built in: first NVIDIA's `cuda-checkpoint`, which moves everything that the process has on GPUs; then
moving PyTorch's tensors, while their context stays (some hundred megabytes). A strategy of an installed package, by
entry point, comes before both. Knows the strategies; must not know cells.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from typing import ClassVar, Protocol

from jupyter_elastic.platform import entry_points
from jupyter_elastic.training.frameworks.device_memory import Cuda, TensorParking
from jupyter_elastic.types import SlotId
from jupyter_elastic.types.errors import EngineError

CHECKPOINT_S = 120.0
"""Seconds that `cuda-checkpoint` may take to bring memory off the GPUs, or back."""


class ParkingStrategy(Protocol):
    """A strategy of parking, for one worker."""

    name: ClassVar[str]
    moves: ClassVar[bool]
    """True if the memory can be restored on another device."""

    def missing(self) -> str:
        """Return why the strategy can't be used here; empty when it can."""
        ...

    def park(self) -> None:
        """Move this process's memory off its devices; EngineError if some stays, and then everything works on."""
        ...

    def restore(self, devices: str) -> None:
        """Move the memory back, to `devices` (`CUDA_VISIBLE_DEVICES`); EngineError if that fails: it stays parked."""
        ...


class CudaCheckpoint:
    """Suspends CUDA in this process by `cuda-checkpoint`. Driver 550 or later; run with 580."""

    name: ClassVar[str] = "cuda-checkpoint"
    moves: ClassVar[bool] = False

    def missing(self) -> str:
        """Return why it can't be used: it is not installed, or does not know this process's state."""
        if shutil.which(self.name) is None:
            return "cuda-checkpoint is not installed"
        return "" if self._run("--get-state") == "running" else "cuda-checkpoint may not, or the driver is too old"

    def park(self) -> None:
        """Suspend CUDA."""
        self._toggle("checkpointed")

    def restore(self, devices: str) -> None:  # noqa: ARG002
        """Resume CUDA, on the same GPUs."""
        self._toggle("running")

    def _toggle(self, wanted: str) -> None:
        self._run("--toggle")
        if (state := self._run("--get-state")) != wanted:
            raise EngineError(f"cuda-checkpoint has left CUDA {state or 'in a state that it does not say'}")

    def _run(self, action: str) -> str:
        command = [self.name, action, "--pid", str(os.getpid())]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=CHECKPOINT_S, check=False)
            return done.stdout.strip()
        return ""


class Tensors:
    """Moves PyTorch's tensors to host memory. TensorFlow and JAX can't do so: their memory stays."""

    name: ClassVar[str] = "tensors"
    moves: ClassVar[bool] = False

    def __init__(self) -> None:
        self._tensors = TensorParking(Cuda())

    def missing(self) -> str:
        """Return why it can't be used: another framework may hold memory on the device."""
        others = [name for name in ("tensorflow", "jax", "cupy") if name in sys.modules]
        return f"{others[0]} is loaded, and what it holds on a GPU can't be moved" if others else ""

    def park(self) -> None:
        """Move the tensors to the host."""
        if left := self._tensors.park():
            self._tensors.restore()
            raise EngineError(f"{left / 1e6:.0f} MB there belong to no tensor that could be moved")

    def restore(self, devices: str) -> None:  # noqa: ARG002 - the process's context is on the same ones
        """Move the tensors back."""
        try:
            self._tensors.restore()
        except RuntimeError as problem:
            raise EngineError(f"the session's tensors can't come back to the GPU: {problem}") from problem


class DeviceParking:
    """The devices of one worker of a session."""

    def __init__(self) -> None:
        self._ways: list[ParkingStrategy] | None = None
        self._by: ParkingStrategy | None = None
        """The strategy by which the memory is parked now."""
        self.slot: SlotId = ""
        """Slot whose device has the memory, or had it before it was parked; empty before the first time."""
        self.stays = ""
        """Reason why the memory stays on the device between two cells; empty: it is parked."""

    def park(self, slot: str) -> str:
        """Move the memory off this slot's device; return why that fails, empty when all has left."""
        if self._by is not None:
            return ""
        if not self.stays:  # else the memory is on its old device, whatever slot the last cell was given
            self.slot = slot
        self.stays = ""
        problems = []
        for way in self._all():
            problem = way.missing()
            if not problem:
                try:
                    way.park()
                except EngineError as failed:
                    problem = str(failed)
                else:
                    self._by = way
                    return ""
            problems.append(f"{way.name}: {problem}")
        self.stays = f"its memory can't leave the device ({'; '.join(problems)})"
        return self.stays

    def restore(self, slot: str, devices: str) -> None:
        """Restore everything on the device of this slot; EngineError if that fails: it stays parked."""
        moves = self._by is not None and self._by.moves
        if self.slot not in {"", slot} and not moves:
            how = self.stays if self._by is None else f"{self._by.name} brings it back to where it was only"
            raise EngineError(
                f"the session's memory was on the device of slot {self.slot}, this cell was given {slot}, and {how}: "
                "run the cell again when that one is free. The variables are kept"
            )
        if self._by is not None:
            self._by.restore(devices)
            self._by = None

    def _all(self) -> list[ParkingStrategy]:
        if self._ways is None:
            others = [entry_points.load(entries)() for entries in entry_points.installed(entry_points.PARKING).values()]
            self._ways = [*others, CudaCheckpoint(), Tensors()]
        return self._ways
