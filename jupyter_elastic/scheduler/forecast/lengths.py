"""How long is a job that doesn't say how long it is? As past ones like it were, and no longer than it may be.

The nearest kin that there is: the same owner's jobs of the same name, anybody's of this name, the owner's, all.
Means, since what counts is the sum of the work ahead. Pure: knows jobs and their speeds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import TypeAlias

from jupyter_elastic.scheduler.policies.speed import GUESS, work_left
from jupyter_elastic.types import JobInfo, JobView

Usual: TypeAlias = Callable[[JobView], float | None]
"""How many seconds a job of this kind needs in all on one worker, from past ones (`History`); None: there were none."""

KEPT = 20
"""Of each kind the last so many count: programs change."""
ENOUGH = (1, 3, 3, 3)
"""How many past jobs of each kind make a guess, from the nearest kin on."""


def served(job: JobView) -> float:
    """The work that a job has had, in seconds of one worker, where n workers count as n**0.9."""
    if job.run_s <= 0:
        return 0.0
    return job.run_s * math.pow(max(1.0, job.attained_s / job.run_s), GUESS)


class History:
    """Lengths of finished jobs, in seconds of one worker."""

    def __init__(self) -> None:
        self._past: dict[tuple[str, ...], deque[float]] = {}

    @classmethod
    def of(cls, jobs: Iterable[JobInfo]) -> History:
        """From the finished ones of these jobs, as screens see them; their last size stands for all that they had."""
        found = cls()
        for job in jobs:
            if job.phase == "completed" and job.started_at is not None and job.ended_at is not None:
                workers = (job.progress.world_size if job.progress is not None else None) or job.spec.min_slots
                seconds = (job.ended_at - job.started_at) * math.pow(workers, GUESS)
                found.ended(job.owner, job.spec.name, seconds)
        return found

    def ended(self, owner: str, name: str, seconds: float) -> None:
        """One more job is over."""
        for kin in _kin(owner, name):
            self._past.setdefault(kin, deque(maxlen=KEPT)).append(seconds)

    def __call__(self, job: JobView) -> float | None:
        """The usual length of jobs like this one; None as long as too few have ended."""
        for kin, enough in zip(_kin(job.owner, job.name), ENOUGH, strict=True):
            past = self._past.get(kin, ())
            if len(past) >= enough:
                return fmean(past)
        return None


def _kin(owner: str, name: str) -> tuple[tuple[str, ...], ...]:
    return ("both", owner, name), ("name", name), ("owner", owner), ("all",)


def expected(job: JobView, rate: Callable[[int], float], usual: Usual | None) -> float:
    """The work that a job still has, in the unit of its rate: what it reports, else the best guess there is.

    That is its owner's estimate, else what such jobs usually need, and at least as much again as it has had; never more
    than it has time for. Of a time limit alone nobody uses all: half of what is left of it.
    """
    remaining, least = job.profile.remaining, max(1, job.min_slots)
    if remaining is not None and (job.profile.fit is not None or job.profile.speeds):
        return max(0.0, remaining)
    limit = math.inf if job.max_time_s is None else max(1.0, job.max_time_s - job.run_s)
    most = limit * rate(job.size.workers or least)
    total = usual(job) if usual is not None and job.estimate_s is None else None
    if total is not None:
        had = served(job)
        return min(max(total - had, had, 1.0) * rate(1), most)
    if job.estimate_s is None and job.max_time_s is not None:
        return most / 2
    return min(work_left(job) / least * rate(least), most)
