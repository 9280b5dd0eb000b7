"""The worker's connection to its attempt, as `training` sees it. Outside a job there is no session and all is local.

Knows no framework. The worker puts a `JobLink` here before it runs the cell.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from jupyter_elastic.training.group import Groups
from jupyter_elastic.types import Progress


class JobLink(Protocol):
    """The services of a worker's attempt."""

    engine: str
    """Name of the engine: `process`, ..."""
    training: int
    """The number of the training that this worker has come to in the cell, from 1; 0: none yet."""
    groups: Groups | None
    """The engine's groups for training together; None if its workers don't know each other."""

    def report(self, progress: Progress) -> None:
        """Send the progress of the training; the caller limits how often."""
        ...

    def show(self, bundle: dict[str, str], name: str, *, again: bool) -> None:
        """Show a MIME bundle as a display of this worker's rank. `again`: replace the display with that name."""
        ...

    def save(self, *commit: bytes | memoryview, durable: bool = False) -> None:
        """Keep a commit (opaque, in pieces) so that it outlives this process; by rank 0 only. `durable`: on disk."""
        ...

    def boundary(self) -> None:
        """Record that the cell has itself saved the state from which it goes on when it is started anew."""
        ...

    def save_shards(self, folder: Path, *commit: bytes | memoryview, durable: bool = False) -> None:
        """Keep a commit that has shards in `folder`, which `new_shards` gave; before this call it is no commit."""
        ...

    def new_shards(self, *, disk: bool = False) -> Path:
        """Return an empty folder, in shared memory or on disk, for all members' shards of the next commit."""
        ...

    def load_shards(self) -> tuple[bytes, Path] | None:
        """Return the last commit of this job that has a folder of shards, and that folder; None before the first."""
        ...

    def load(self) -> memoryview | None:
        """Return the last commit of this job, from any attempt; None before the first. It does not change any more."""
        ...

    def write_training(self, *outcome: bytes | memoryview) -> None:
        """Write down the outcome of the present training, which is over. OSError: there is no room."""
        ...

    def keep_training(self) -> None:
        """Keep the written outcome, which `finished` returns from now on: the cell goes on to another training."""
        ...

    def finished(self) -> memoryview | None:
        """Return the kept outcome of the present training; None: it is not over, or was not kept."""
        ...

    def change_wanted(self) -> bool:
        """Return True if this worker is called to the rendezvous: a new generation, its removal, or a preemption."""
        ...

    def collective(self, step: int) -> None:
        """Record that this worker begins, in this step, a collective of its whole group."""
        ...

    def leave(self) -> None:
        """Record that this worker's training function has returned."""
        ...


current: JobLink | None = None
