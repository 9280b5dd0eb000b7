"""How many unfinished jobs there were: what finish-time fairness has to remember.

A few points of the integral of their number over time, exact while they are few, kept in the plan's memo. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any

from jupyter_elastic.types import View

POINTS = 48
"""So many points are remembered; of more the least telling go."""
STEP = 200
"""A change of the number by less than one in so many is not worth a point, nor an entry in the journal."""


class Crowd:
    """The integral of the number of unfinished jobs, in job-seconds, from some moment until now."""

    def __init__(self, now: float, number: int, times: list[float], areas: list[float]) -> None:
        """`number` jobs since the last of `times`, at which the integral was the last of `areas`."""
        self.number = number
        self.times, self.areas = times, areas
        self.now, self.area = now, areas[-1] + number * max(0.0, now - times[-1])

    @classmethod
    def of(cls, view: View) -> Crowd:
        """What the memo remembers, brought up to the view; without one, as if no job had ended before."""
        now, jobs, memo = view.now, view.jobs, view.memo
        oldest = jobs[0].submitted_at if jobs else now
        if isinstance(memo, dict):
            found = cls(now, memo["number"], list(memo["times"]), list(memo["areas"]))
            if abs(len(jobs) - found.number) * STEP <= found.number:
                return found
            found.times.append(round(now, 3))
            found.areas.append(round(found.area, 1))
            found.number = len(jobs)
        else:
            births = [*(job.submitted_at for job in jobs), now]
            sums = accumulate(births, initial=0.0)
            areas = [at * birth - earlier for at, (birth, earlier) in enumerate(zip(births, sums, strict=False))]
            every = 1 + len(jobs) // (2 * POINTS)
            found = cls(now, len(jobs), [*births[:-1:every], now], [*areas[:-1:every], areas[-1]])
        found._tidy(oldest)
        return found

    def _tidy(self, oldest: float) -> None:
        """Forget what is older than all jobs, and the points that tell least."""
        times, areas = self.times, self.areas
        old = bisect_right(times, oldest) - 1
        if old > 0:
            del times[:old], areas[:old]
        while len(times) > POINTS:
            at = min(range(1, len(times) - 1), key=self._bend)
            del times[at], areas[at]

    def _bend(self, at: int) -> float:
        """By how much the line through its neighbours misses a point."""
        (t0, t1, t2), (a0, a1, a2) = self.times[at - 1 : at + 2], self.areas[at - 1 : at + 2]
        return abs(a0 + (a2 - a0) * (t1 - t0) / (t2 - t0) - a1) if t2 > t0 else 0.0

    def memo(self) -> dict[str, Any]:
        """As it is kept until the next plan; the same as long as the number of jobs is."""
        return {"number": self.number, "times": self.times, "areas": self.areas}
