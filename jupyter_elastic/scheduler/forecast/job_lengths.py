"""Guess the length of a job that states none: from past jobs like it, and no longer than it may be.

The nearest kin with enough jobs counts: the same owner's jobs of the same name, anybody's of this name, the owner's,
all. A guess is a mean, since the sum of the work ahead matters, and a spread. Pure: knows jobs and their speeds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from statistics import fmean
from typing import NamedTuple, TypeAlias

from jupyter_elastic.scheduler.policies.speed import GUESS, work_left
from jupyter_elastic.types import JobInfo, JobView

UNKNOWN_SIGMA = 1.2
"""Spread of unknown lengths: the standard deviation of their logarithms in published clusters."""
ASSUMED = 2
"""Number of past jobs as which `UNKNOWN_SIGMA` counts."""


class Length(NamedTuple):
    """Length of jobs of one kind."""

    seconds: float
    """Seconds of the whole job on one worker."""
    sigma: float = UNKNOWN_SIGMA
    """Standard deviation of the logarithms of the lengths."""


Usual: TypeAlias = Callable[[JobView], Length | None]
"""Returns the length of past jobs of this kind (`History`); None if there were none."""

KEPT = 20
"""Number of last lengths of each kind that count; programs change."""
ENOUGH = (1, 3, 3, 3)
"""Number of past jobs of each kind that make a guess, from the nearest kin on."""


def served(job: JobView) -> float:
    """Return the work that a job has had, in seconds of one worker, where n workers count as n**0.9."""
    if job.run_s <= 0:
        return 0.0
    return job.run_s * math.pow(max(1.0, job.attained_s / job.run_s), GUESS)


class History:
    """Lengths of finished jobs, in seconds of one worker."""

    def __init__(self) -> None:
        self._past: dict[tuple[str, ...], deque[float]] = {}

    @classmethod
    def of(cls, jobs: Iterable[JobInfo]) -> History:
        """Take the finished ones of these jobs, as screens see them; their last size counts for all their time."""
        found = cls()
        for job in jobs:
            if job.phase == "completed" and job.started_at is not None and job.ended_at is not None:
                workers = (job.progress.world_size if job.progress is not None else None) or job.spec.min_slots
                seconds = (job.ended_at - job.started_at) * math.pow(workers, GUESS)
                found.ended(job.owner, job.spec.name, seconds)
        return found

    def ended(self, owner: str, name: str, seconds: float) -> None:
        """Add a job that has ended."""
        for kin in _kin(owner, name):
            self._past.setdefault(kin, deque(maxlen=KEPT)).append(seconds)

    def __call__(self, job: JobView) -> Length | None:
        """Return the usual length of jobs like this one; None while too few have ended."""
        for kin, enough in zip(_kin(job.owner, job.name), ENOUGH, strict=True):
            past = self._past.get(kin, ())
            if len(past) >= enough:
                return Length(fmean(past), _sigma(past))
        return None


def _sigma(seconds: Collection[float]) -> float:
    logs = [math.log(max(one, 1.0)) for one in seconds]
    middle = fmean(logs)
    squares = ASSUMED * UNKNOWN_SIGMA**2 + sum((one - middle) ** 2 for one in logs)
    return math.sqrt(squares / (ASSUMED + len(logs) - 1))


def _kin(owner: str, name: str) -> tuple[tuple[str, ...], ...]:
    return ("both", owner, name), ("name", name), ("owner", owner), ("all",)


def measured(job: JobView) -> bool:
    """True if the job's speed is known, which a second report tells."""
    return job.profile.fit is not None or bool(job.profile.speeds)


def expected(job: JobView, rate: Callable[[int], float], usual: Usual | None) -> float:
    """Return the work that a job still has, in the unit of its rate: as reported, else the best guess.

    That is its owner's estimate, else the usual length of such jobs, and at least as much again as it has had; never
    more than it has time for. With a time limit alone: half of what is left of it, as no job uses all.
    """
    remaining, done, least = job.profile.remaining, job.profile.done, max(1, job.min_slots)
    if remaining is not None and measured(job):
        return max(0.0, remaining)
    if remaining is not None and done:  # the first report: as much time for each part as the first one took
        return max(served(job), 1.0) * remaining / done * rate(1)
    limit = math.inf if job.max_time_s is None else max(1.0, job.max_time_s - job.run_s)
    most = limit * rate(job.size.workers or least)
    total = usual(job) if usual is not None and job.estimate_s is None else None
    if total is not None:
        had = served(job)
        return min(max(total.seconds - had, had, 1.0) * rate(1), most)
    if job.estimate_s is None and job.max_time_s is not None:
        return most / 2
    return min(work_left(job) / least * rate(least), most)
