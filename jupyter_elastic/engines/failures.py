"""Why an attempt failed, and how that is left for people to read."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

DIED = "WorkerDied"
LINE = 300
"""Characters of another rank's failure."""


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
        plain = not self.traceback or self.type == DIED
        return self.message if plain else f"rank {self.rank}: {self.type}: {self.message}"

    def bare(self, words: str) -> str:
        """These words without the rank that they begin with."""
        return words.removeprefix(f"rank {self.rank}: ")

    def beside(self, others: Iterable[Failure]) -> list[str]:
        """A line for each other rank that failed; ranks of which the same is to be said share one."""
        told: dict[str, list[int]] = {}
        seen = {self.rank}
        for other in others:
            if other.rank not in seen:
                seen.add(other.rank)
                same = other.type == self.type and other.bare(other.message) == self.bare(self.message)
                said = "the same" if same else other.bare(other.reason).partition("\n")[0]
                told.setdefault(said[:LINE], []).append(other.rank)
        return [
            f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}: {said}"
            for said, ranks in told.items()
        ]

    def write(self, folder: Path, others: Iterable[Failure] = ()) -> None:
        """Leave it in the job's folder as `error.json`, a line for each other rank with it; a full disk is no error."""
        words = {
            "rank": self.rank, "type": self.type, "message": self.message, "traceback": self.traceback,
            "others": self.beside(others),
        }  # fmt: skip
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
