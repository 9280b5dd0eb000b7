"""Remember how many unfinished jobs there were, as finish-time fairness needs it.

A few points of the integral of their number over time, exact while they are few, kept in the plan's memo. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any

from jupyter_elastic.types import View

POINTS = 48
"""Maximum number of points; beyond it those with the least information are dropped."""
STEP = 200
"""Inverse of the smallest relative change of the number that gets a point, and so an entry in the journal."""


class Crowd:
    """Integral of the number of unfinished jobs, in job-seconds, from some moment until now."""

    def __init__(self, now: float, number: int, times: list[float], areas: list[float]) -> None:
        """Begin with `number` jobs since the last of `times`, at which the integral was the last of `areas`."""
        self.number = number
        self.times, self.areas = times, areas
        self.now, self.area = now, areas[-1] + number * max(0.0, now - times[-1])

    @classmethod
    def of(cls, view: View) -> Crowd:
        """Restore the memo and extend it to the view; without one assume that no job had ended before."""
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
        """Drop points older than all jobs, and those with the least information."""
        times, areas = self.times, self.areas
        old = bisect_right(times, oldest) - 1
        if old > 0:
            del times[:old], areas[:old]
        while len(times) > POINTS:
            at = min(range(1, len(times) - 1), key=self._bend)
            del times[at], areas[at]

    def _bend(self, at: int) -> float:
        """Return the error at a point of the line through its neighbours."""
        (t0, t1, t2), (a0, a1, a2) = self.times[at - 1 : at + 2], self.areas[at - 1 : at + 2]
        return abs(a0 + (a2 - a0) * (t1 - t0) / (t2 - t0) - a1) if t2 > t0 else 0.0

    def memo(self) -> dict[str, Any]:
        """Return the state to keep until the next plan; the same as long as the number of jobs is."""
        return {"number": self.number, "times": self.times, "areas": self.areas}
