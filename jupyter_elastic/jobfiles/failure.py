"""Reads and writes `error.json`: an attempt's failure, left by its engine in the job's folder for people to read."""

from __future__ import annotations

import contextlib
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.platform import private_files

DIED = "WorkerDied"
"""The type of a failure that is no exception: the worker's process died."""
NAME = "error.json"


class Failure(Struct, frozen=True, kw_only=True):
    """The failure of one rank."""

    rank: int = 0
    type: str = ""
    message: str = ""
    traceback: str = ""
    others: tuple[str, ...] = ()
    """A line for each other rank that failed."""

    @property
    def text(self) -> str:
        """The traceback, or type and message without one, and the other ranks."""
        first = self.traceback.rstrip() or f"{self.type}: {self.message}"
        return "\n".join([first, *self.others])

    @property
    def reason(self) -> str:
        """The failure in one line for a person."""
        plain = not self.traceback or self.type == DIED
        return self.message if plain else f"rank {self.rank}: {self.type}: {self.message}"


def read(folder: JobFolder) -> Failure | None:
    """Read the failure in this job's folder; None when there is none that can be read."""
    found = folder.json(Failure, NAME)
    if found is None or folder.own:
        return found
    texts = {name: folder.text(getattr(found, name)) for name in ("type", "message", "traceback")}
    return replace(found, others=tuple(map(folder.text, found.others)), **texts)


def write(folder: Path, failure: Failure) -> None:
    """Write the failure into the job's folder; a full disk is no error."""
    with contextlib.suppress(OSError):
        private_files.write_json(folder / NAME, failure)
