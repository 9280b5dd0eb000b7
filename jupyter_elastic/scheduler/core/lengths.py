"""How long jobs were that did not say so beforehand, by owner and name: what is known of the next of that kind (pure).

The lengths of jobs that report how much is left are not kept: the next one reports too, soon after its start.
"""

from __future__ import annotations

from itertools import islice
from math import pow  # noqa: A004 - of floats, always a float
from typing import TypeAlias

KEPT = 20
"""Of each kind the last so many count: programs change."""
NAMES = 100
"""Names of one owner that are remembered, those of the last jobs."""
GUESS = 0.9
"""n workers are taken to be n**0.9 times as fast as one, as policies take it."""

Lengths: TypeAlias = dict[str, dict[str, tuple[float, ...]]]
"""By owner and name, seconds on the least size that the job had asked for, the newest last."""


def length(attained_s: float, run_s: float, least: int) -> float:
    """Seconds that a job needs on its least size which had so many slot-seconds in so many seconds."""
    return run_s * pow(max(1.0, attained_s / run_s) / max(1, least), GUESS)


def noted(lengths: Lengths, owner: str, name: str, seconds: float) -> Lengths:
    """The lengths with one more. Views hold the mapping as it was, so it is made anew."""
    names = dict(lengths.get(owner, {}))
    past = names.pop(name, ())
    names[name] = (*past[1 - KEPT :], round(seconds, 3))
    kept = dict(islice(names.items(), max(0, len(names) - NAMES), None))
    return {**lengths, owner: kept}
