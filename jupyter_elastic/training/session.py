"""The worker's end of the driver's pipe, as `training` sees it. Outside a job there is no session and all is local.

Knows no framework. The worker puts a `Session` here before it runs the cell.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from jupyter_elastic.training.group import Groups
from jupyter_elastic.types import Progress


class Session(Protocol):
    """What a worker can ask of the attempt it belongs to."""

    engine: str
    """Its name: `process`, ..."""
    training: int
    """The number of the training that this worker has come to in the cell, from 1; 0: none yet."""
    groups: Groups | None
    """What the engine offers for training together; None when its workers don't know each other."""

    def report(self, progress: Progress) -> None:
        """Tell how far the training is; whoever calls limits how often."""
        ...

    def show(self, bundle: dict[str, str], name: str, *, again: bool) -> None:
        """Show a MIME bundle as a display of this worker's rank. `again`: in the place of the one with that name."""
        ...

    def save(self, *commit: bytes | memoryview, durable: bool = False) -> None:
        """Keep a commit (opaque, in pieces) so that it outlives this process; by rank 0 only. `durable`: on disk."""
        ...

    def boundary(self) -> None:
        """The cell has saved by itself what it goes on from when it is started anew."""
        ...

    def save_shards(self, folder: Path, *commit: bytes | memoryview, durable: bool = False) -> None:
        """Keep a commit that has shards in `folder`, which `new_shards` gave; before this call it is no commit."""
        ...

    def new_shards(self, *, disk: bool = False) -> Path:
        """An empty folder into which all members write their shards of the next commit, in shared memory or on disk."""
        ...

    def load_shards(self) -> tuple[bytes, Path] | None:
        """The last commit of this job that has a folder of shards, and that; None before the first."""
        ...

    def load(self) -> memoryview | None:
        """The last commit of this job, from whatever attempt; None before the first. It does not change any more."""
        ...

    def write_training(self, *outcome: bytes | memoryview) -> None:
        """Write down what became of the present training, which is over. OSError: there is no room."""
        ...

    def keep_training(self) -> None:
        """The cell goes on to another training: from now on `finished` gives what was written down."""
        ...

    def finished(self) -> memoryview | None:
        """What was kept of the present training; None: it is not over, or nothing was."""
        ...

    def change_wanted(self) -> bool:
        """Whether this worker is asked to the rendezvous: another generation, its removal, or a preemption waits."""
        ...

    def collective(self, step: int) -> None:
        """This worker begins something, in this step, that every member of its group takes part in."""
        ...

    def leave(self) -> None:
        """This worker's training function has returned."""
        ...


current: Session | None = None
