"""Why an attempt failed, and how that is left for people to read."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Failure:
    """What one worker failed of. The lower `weight`, the nearer it is to the cause."""

    weight: int
    rank: int
    type: str
    message: str
    traceback: str = field(default="", repr=False)

    @property
    def reason(self) -> str:
        """One line for a person."""
        return f"rank {self.rank}: {self.type}: {self.message}" if self.traceback else self.message

    def write(self, folder: Path) -> None:
        """Leave it in the job's folder as `error.json`; a full disk changes nothing."""
        words = {"rank": self.rank, "type": self.type, "message": self.message, "traceback": self.traceback}
        temporary = folder / ".error.json"
        with contextlib.suppress(OSError):
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(words, file)
            temporary.replace(folder / "error.json")


_TOGETHER = (
    "Let all decide together: `if training.agree(enough): break` (from jupyter_elastic import training) breaks on "
    "every rank as soon as one has enough"
)


def left_early(leaver: int, other: int, *, step: int, own: int) -> Failure:
    """A training function has returned on one rank, and another goes on."""
    return Failure(
        0, leaver, "LeftEarly",
        f"rank {leaver} left the training after step {step}, and rank {other} went on with step {own}: they would have "
        f"trained apart. {_TOGETHER}",
    )  # fmt: skip


def ended_early(leaver: int, other: int) -> Failure:
    """A cell has come to its end on one rank, and another waits for it in a ring."""
    return Failure(
        1, leaver, "LeftEarly",
        f"rank {leaver} came to the end of its cell while rank {other} was still training: {other} would have trained "
        f"on alone. {_TOGETHER}",
    )  # fmt: skip
