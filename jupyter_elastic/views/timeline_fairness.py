"""Compares each user's slots over time with the fair share. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

from jupyter_elastic.scheduler.journal.entitlement import Account, entitlements
from jupyter_elastic.types import SharesChanged, SlotId
from jupyter_elastic.views.timeline_bars import JobPast
from jupyter_elastic.views.timeline_screen import FairRow

POINTS = 60
MAX_USERS = 8
"""Maximum number of users: those who used most."""


def fairness(
    jobs: Collection[JobPast],
    capacities: Sequence[tuple[float, int]],
    shares: SharesChanged,
    servers: frozenset[SlotId],
    begin: float,
    end: float,
) -> list[FairRow]:
    """Return the users of a window by their use, the most first; shares by the rule of the policy `fair`.

    A viewer who may not see the file of shares (`SharesChanged`) is shown equal ones.
    """
    if end <= begin or not jobs:
        return []
    step = (end - begin) / POINTS
    used: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * POINTS)
    present: list[Counter[Account]] = [Counter() for _ in range(POINTS)]
    for job in jobs:
        account = (job.owner, job.group)
        for at in _points(job.submitted_at, job.ended_at or end, begin, step):
            present[at][account] += 1
        for span in job.all_spans():
            slots = len(span.slots - servers)
            until = end if span.end is None else span.end
            for at in _points(span.begin, until, begin, step):
                inside = min(until, begin + (at + 1) * step) - max(span.begin, begin + at * step)
                used[job.owner][at] += slots * max(0.0, inside) / step
    fair: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * POINTS)
    known: dict[tuple[int, frozenset[Account]], dict[Account, float]] = {}
    for at in range(POINTS):
        capacity = _capacity(capacities, begin + (at + 0.5) * step)
        key = (capacity, frozenset(present[at]))
        if key not in known:
            known[key] = entitlements(capacity, present[at], shares)
        for (user, _), due in known[key].items():
            fair[user][at] += due
    total = {user: sum(used[user]) for user in {job.owner for job in jobs}}
    return [
        FairRow(
            user=user,
            points=[(begin + at * step, round(used[user][at], 3), round(fair[user][at], 3)) for at in range(POINTS)],
        )
        for user in sorted(total, key=lambda user: (-total[user], user))[:MAX_USERS]
    ]


def _points(begin: float, end: float, origin: float, step: float) -> Iterable[int]:
    """Return the indices of the points that cover this time."""
    return range(max(0, int((begin - origin) / step)), min(POINTS, int((end - origin) / step) + 1))


def _capacity(capacities: Sequence[tuple[float, int]], at: float) -> int:
    return next((slots for since, slots in reversed(capacities) if since <= at), capacities[0][1])
