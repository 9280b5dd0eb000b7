"""Which rank waits for which: judged from where all of them are. Knows nothing of how that is found out."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence

from jupyter_elastic.protocol.worker import StackReport

log = logging.getLogger(__name__)

ENV = "JUPYTER_ELASTIC_WAIT_S"
WAIT_S = 30.0
"""A rank that stands in one collective for so long is reported to wait."""
LOOKS = 6
"""So often the workers are asked where they are in that time, while the job sends nothing else."""


def patience_s(env: Mapping[str, str]) -> float:
    """How long a rank may wait before it is reported, by the job's environment or else this process's; 0: never."""
    given = env.get(ENV) or os.environ.get(ENV)
    try:
        return max(0.0, float(given)) if given else WAIT_S
    except ValueError:
        log.warning("%s=%s is no number of seconds; it is %g s", ENV, given, WAIT_S)
        return WAIT_S


def sentence(looks: Iterable[StackReport], ended: Sequence[int], patience_s: float) -> str:
    """A sentence that says which ranks wait for which; empty when nobody does, or nobody can be accused.

    `ended` are the ranks whose cell has come to its end. Whoever only computes doesn't wait, however long it takes.
    """
    known = sorted(looks, key=lambda look: look.rank)
    waiting = [look for look in known if look.held and look.still_s >= patience_s]
    if not waiting:
        return ""
    elsewhere = [look for look in known if not look.held]
    since = f"since {max(look.still_s for look in waiting):.0f} s"
    who = f"{_ranks([look.rank for look in waiting])} {'waits' if len(waiting) == 1 else 'wait'}"
    if elsewhere:
        first, *more = elsewhere
        others = "".join(f"; rank {look.rank} is at {look.where}" for look in more[:3])
        missing = _ranks([look.rank for look in elsewhere])
        place = f"which is at {first.where}" if not more else f"rank {first.rank} is at {first.where}"
        return f"{who} for {missing} {since}, {place}{others}"
    if ended:
        has = "has" if len(ended) == 1 else "have"
        return f"{who} at {waiting[0].where} {since}; {_ranks(ended)} {has} come to the end of the cell"
    if len(waiting) == len(known) and len({look.where for look in waiting}) > 1:
        places = ", ".join(f"rank {look.rank} at {look.where}" for look in waiting[:4])
        return f"{_ranks([look.rank for look in waiting])} wait for each other {since}: {places}"
    return ""


def _ranks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    shown = ", ".join(map(str, sorted(numbers)[:-1][:8]))
    return f"ranks {shown} and {max(numbers)}"
