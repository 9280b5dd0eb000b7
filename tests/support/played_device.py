"""A device whose memory is that of mapped files, so that the kernel says what a process has there; and its plug-in.

A cell on a slot whose device is `GPU-0` has its memory in `$PLAYED/GPU-0`. `install` makes a folder which, on Python's
path, is an installed package that offers `Way` for parking.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import torch

from jupyter_elastic.training.frameworks.device_memory import TensorParking
from jupyter_elastic.types.errors import EngineError


class Played:
    """A device whose memory is that of mapped files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()

    def storage(self, size: int) -> Any:
        """New memory there."""
        path = self.folder / f"{next(self._numbers)}"
        path.write_bytes(bytes(size))
        return torch.UntypedStorage.from_file(str(path), True, size)

    def tensor(self, host: Any) -> Any:
        """A copy of a host's tensor there."""
        there = torch.empty(0, dtype=host.dtype).set_(self.storage(host.nbytes), 0, host.size(), host.stride())
        return there.copy_(host)

    def holds(self, storage: Any) -> bool:
        return any(low <= storage.data_ptr() < high for low, high in self._mapped())

    def place(self, storage: Any) -> str:
        assert self.holds(storage)
        return "played"

    def to_host(self, storage: Any) -> Any:
        return torch.UntypedStorage(storage.nbytes()).copy_(storage)

    def to_device(self, storage: Any, where: str) -> Any:
        assert where == "played"
        return self.storage(storage.nbytes()).copy_(storage)

    def release(self) -> None:
        pass

    def used(self) -> int:
        return sum(high - low for low, high in self._mapped())

    def _mapped(self) -> list[tuple[int, int]]:
        lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        found = [words[0].split("-") for words in lines if words[-1].startswith(f"{self.folder}/")]
        return [(int(low, 16), int(high, 16)) for low, high in found]


class Way:
    """A way of parking that can come back on another device."""

    name: ClassVar[str] = "played"
    moves: ClassVar[bool] = "MOVES" in os.environ

    def __init__(self) -> None:
        self._tensors = TensorParking(here())

    def missing(self) -> str:
        """It is there unless a test takes it away."""
        return os.environ.get("MISSING", "")

    def park(self) -> None:
        """All leaves, or nothing; as slowly as a test wants."""
        time.sleep(float(os.environ.get("SLOW", "0")))
        if left := self._tensors.park():
            self._tensors.restore()
            raise EngineError(f"{left} bytes belong to no tensor")

    def restore(self, devices: str) -> None:
        """Come back, on this device."""
        here().folder = Path(os.environ["PLAYED"], devices)
        here().folder.mkdir(exist_ok=True)
        self._tensors.restore()


_here: list[Played] = []


def here() -> Played:
    """This process's device."""
    if not _here:
        _here.append(Played(Path(os.environ["PLAYED"], os.environ["CUDA_VISIBLE_DEVICES"])))
        _here[0].folder.mkdir(exist_ok=True)
    return _here[0]


def held(pid: int, played: Path) -> set[str]:
    """The devices on which a process has memory, as the kernel says."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {Path(words[-1]).parent.name for line in lines if str(played) in (words := line.split())[-1]}


def install(folder: Path) -> None:
    """Offer `Way` to whoever has the folder on its path."""
    info = folder / "played-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: played\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[jupyter_elastic.parking]\nplayed = tests.support.played_device:Way\n")
