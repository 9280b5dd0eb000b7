"""Finds the cause among the failures of an attempt: of several, one explains the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import msgspec

from jupyter_elastic.jobfiles.failure import Failure

LINE = 300
"""Maximum characters of another rank's failure."""


class Weight(IntEnum):
    """Distance of a failure from the cause: of two, the lower one explains the other."""

    RAISED = 0
    GONE = 1
    """A worker was killed, or had ended its cell, while others needed it."""
    BROKEN_GROUP = 2
    """A collective failed; its cause, such as a death, may be reported later."""
    EXITED = 3
    """A worker left with an exit code before its cell was through."""


class Failures:
    """The failures of one attempt, in the order in which they were reported."""

    def __init__(self) -> None:
        self._all: list[tuple[Weight, Failure]] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, weight: Weight, failure: Failure) -> None:
        """Record a failure."""
        self._all.append((weight, failure))

    @property
    def explained(self) -> bool:
        """True if one of the failures can be the cause of the others; else its news may still be on the way."""
        return min(weight for weight, _ in self._all) < Weight.BROKEN_GROUP

    @property
    def killed(self) -> bool:
        """True if a worker was killed."""
        return any(weight is Weight.GONE for weight, _ in self._all)

    def cause(self, ended: Iterable[int] = ()) -> Failure:
        """Return the failure nearest to the cause, with a line for each other rank. `ended`: ranks whose cell ended."""
        _, cause = min(self._all, key=lambda entry: (entry[0], entry[1].rank))
        others = tuple(_lines(cause, (failure for _, failure in self._all)))
        message = cause.message
        if not self.explained:
            message += "".join(f"; rank {rank} had come to the end of its cell" for rank in list(ended)[:1])
        return msgspec.structs.replace(cause, message=message, others=others)


def _lines(cause: Failure, failures: Iterable[Failure]) -> list[str]:
    """Return a line for each other rank that failed; ranks with the same line share it."""
    ranks: dict[str, list[int]] = {}
    seen = {cause.rank}
    for other in failures:
        if other.rank not in seen:
            seen.add(other.rank)
            same = other.type == cause.type and _bare(other, other.message) == _bare(cause, cause.message)
            line = "the same" if same else _bare(other, other.reason).partition("\n")[0]
            ranks.setdefault(line[:LINE], []).append(other.rank)
    return [
        f"rank{'s' if len(found) > 1 else ''} {', '.join(map(str, sorted(found)))}: {line}"
        for line, found in ranks.items()
    ]


def _bare(failure: Failure, text: str) -> str:
    """Return the text without the rank that it begins with."""
    return text.removeprefix(f"rank {failure.rank}: ")


_TOGETHER = (
    "Let all decide together: `if training.agree(enough): break` (from jupyter_elastic import training) breaks on "
    "every rank as soon as one has enough"
)


def left_early(leaver: int, other: int, *, step: int, own: int) -> Failure:
    """Return the failure of a rank that returned from the training function while another goes on."""
    return Failure(
        rank=leaver,
        type="LeftEarly",
        message=f"rank {leaver} left the training after step {step}, and rank {other} went on with step {own}: they "
        f"would have trained apart. {_TOGETHER}",
    )


def ended_early(leaver: int, other: int) -> Failure:
    """Return the failure of a rank that ended its cell while another waits for it in a group."""
    return Failure(
        rank=leaver,
        type="LeftEarly",
        message=f"rank {leaver} came to the end of its cell while rank {other} was still training: {other} would have "
        f"trained on alone. {_TOGETHER}",
    )
