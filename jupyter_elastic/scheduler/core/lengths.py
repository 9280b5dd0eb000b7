"""Remember how long jobs without a stated length took, by owner and name, to estimate the next of that kind (pure).

The lengths of jobs that report their remaining work are not kept: the next one reports too, soon after its start.
"""

from __future__ import annotations

from itertools import islice
from math import pow  # noqa: A004 - of floats, always a float
from typing import TypeAlias

KEPT = 20
"""Number of last lengths of each kind that count; programs change."""
NAMES = 100
"""Number of names of one owner that are remembered, those of the last jobs."""
GUESS = 0.9
"""Exponent of the assumed speed-up, as in policies: n workers are n**0.9 times as fast as one."""

Lengths: TypeAlias = dict[str, dict[str, tuple[float, ...]]]
"""Seconds at the minimum size that the job had asked for, by owner and name, the newest last."""


def length(attained_s: float, run_s: float, least: int) -> float:
    """Return the seconds that a job would need at its minimum size, from its slot-seconds and running time."""
    return run_s * pow(max(1.0, attained_s / run_s) / max(1, least), GUESS)


def noted(lengths: Lengths, owner: str, name: str, seconds: float) -> Lengths:
    """Return the lengths with one added, as a new mapping, because views hold the old one."""
    names = dict(lengths.get(owner, {}))
    past = names.pop(name, ())
    names[name] = (*past[1 - KEPT :], round(seconds, 3))
    kept = dict(islice(names.items(), max(0, len(names) - NAMES), None))
    return {**lengths, owner: kept}
