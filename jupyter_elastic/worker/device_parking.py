"""What a session's worker has on a GPU leaves it before the slot is given back, and is there again in the next cell.

In the order of preference, the ways are NVIDIA's `cuda-checkpoint`, by which all that the process has on GPUs leaves
them, and the tensors of PyTorch, of which the context stays (some hundred megabytes). A way of an installed package, by
entry point, comes before both. Knows the ways; must not know cells.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from typing import ClassVar, Protocol

from jupyter_elastic.platform import plugins
from jupyter_elastic.training.device_memory import Cuda, TensorParking
from jupyter_elastic.types import SlotId
from jupyter_elastic.types.errors import EngineError

CHECKPOINT_S = 120.0
"""How long `cuda-checkpoint` may take to bring memory off the GPUs, or back."""


class Way(Protocol):
    """One way of parking, of one worker."""

    name: ClassVar[str]
    moves: ClassVar[bool]
    """Whether it can be restored where the worker has another device."""

    def missing(self) -> str:
        """Why it can't be used here; empty when it can."""
        ...

    def park(self) -> None:
        """Bring what this process has off its devices; EngineError when something stays, and then all works on."""
        ...

    def restore(self, devices: str) -> None:
        """Bring it back, to what `CUDA_VISIBLE_DEVICES` names; EngineError when that fails, and it is parked still."""
        ...


class CudaCheckpoint:
    """`cuda-checkpoint` suspends CUDA in this process. Driver 550 or later; run with 580."""

    name: ClassVar[str] = "cuda-checkpoint"
    moves: ClassVar[bool] = False

    def missing(self) -> str:
        """Why it can't be used: it is not there, or does not know this process's state."""
        if shutil.which(self.name) is None:
            return "cuda-checkpoint is not installed"
        return "" if self._run("--get-state") == "running" else "cuda-checkpoint may not, or the driver is too old"

    def park(self) -> None:
        """Suspend CUDA."""
        self._toggle("checkpointed")

    def restore(self, devices: str) -> None:  # noqa: ARG002
        """Resume it, on the same GPUs."""
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
    """PyTorch's tensors go to host memory. TensorFlow and JAX have no such way: what they hold stays."""

    name: ClassVar[str] = "tensors"
    moves: ClassVar[bool] = False

    def __init__(self) -> None:
        self._tensors = TensorParking(Cuda())

    def missing(self) -> str:
        """Why it can't be used: another framework may hold memory there."""
        others = [name for name in ("tensorflow", "jax", "cupy") if name in sys.modules]
        return f"{others[0]} is loaded, and what it holds on a GPU can't be moved" if others else ""

    def park(self) -> None:
        """Move them to the host."""
        if left := self._tensors.park():
            self._tensors.restore()
            raise EngineError(f"{left / 1e6:.0f} MB there belong to no tensor that could be moved")

    def restore(self, devices: str) -> None:  # noqa: ARG002 - the process's context is on the same ones
        """Move them back."""
        try:
            self._tensors.restore()
        except RuntimeError as problem:
            raise EngineError(f"the session's tensors can't come back to the GPU: {problem}") from problem


class DeviceParking:
    """The devices of one worker of a session."""

    def __init__(self) -> None:
        self._ways: list[Way] | None = None
        self._by: Way | None = None
        """The way by which it is parked now."""
        self.slot: SlotId = ""
        """On whose device all is, or was before it was parked; empty before the first time."""
        self.stays = ""
        """Why it is on that device still, between two cells; empty: it is parked."""

    def park(self, slot: str) -> str:
        """Leave the device of this slot; why that can't be, empty when all has left."""
        if self._by is not None:
            return ""
        if not self.stays:  # else it is where it was, whatever slot the last cell was given
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
        """Have everything on the device of this slot again; EngineError when it can't be, and it is parked still."""
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

    def _all(self) -> list[Way]:
        if self._ways is None:
            others = [plugins.load(entries)() for entries in plugins.installed(plugins.PARKING).values()]
            self._ways = [*others, CudaCheckpoint(), Tensors()]
        return self._ways
