"""Estimate a job's speed and its remaining time.

Measured speeds come first, then the fit, else a concave guess: n workers are n**0.9 times as fast as one, and a job of
unknown length is expected to need as long again as it has had (the mean residual life of heavy-tailed lengths, the
reason why least-attained-service works). A briefly measured size other than the job's present one counts as at least as
fast as the guess from a smaller one: else a busy moment of the machine would keep the job from it for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from jupyter_elastic.types import JobView, Speed

GUESS = 0.9
UNKNOWN_S = 60.0
"""Minimum of slot-seconds that a job of unknown length is expected to need."""


def rates(job: JobView) -> Callable[[int], float]:
    """Return the job's speed by number of workers: samples/s, or multiples of one worker's if nothing is measured."""
    profile, servers = job.profile, job.min_servers
    points, fit = profile.speeds, profile.fit
    fitted = guess if fit is None else partial(_fitted, *fit)
    if not points:
        return fitted
    first = points[0].workers

    def believed(point: Speed) -> bool:
        return not point.brief or point.workers == job.size.workers

    def known(point: Speed) -> float:
        if believed(point):
            return point.samples_per_s
        smaller = (one for one in points if one.workers < point.workers and one.servers == servers and believed(one))
        near = max(smaller, key=lambda one: one.workers, default=None)
        if near is None:
            return point.samples_per_s
        return max(point.samples_per_s, near.samples_per_s * math.pow(point.workers / near.workers, GUESS))

    def speed(workers: int) -> float:
        if workers <= 0:
            return 0.0
        at = workers - first  # where it is if every size is measured, as in a simulator
        if 0 <= at < len(points) and points[at].workers == workers and points[at].servers == servers:
            return known(points[at])
        for point in points:
            if point.workers == workers and point.servers == servers:
                return known(point)
        if fit is not None:
            return fitted(workers)
        near = min(points, key=lambda point: (abs(point.workers - workers), point.workers))
        return near.samples_per_s * (float(workers) / near.workers) ** GUESS if near.workers else 0.0

    return speed


def _fitted(a: float, b: float, d: float, workers: int) -> float:
    if workers <= 0:
        return 0.0
    seconds = a / workers + b + d * workers
    return 1.0 / seconds if seconds > 0 else 0.0


GUESSES: tuple[float, ...] = tuple(math.pow(workers, GUESS) for workers in range(257))
"""Guess at the usual sizes, computed once."""


def guess(workers: int) -> float:
    """Return the guessed speed of an unmeasured job, in multiples of one worker's."""
    if 0 <= workers < len(GUESSES):
        return GUESSES[workers]
    return math.pow(workers, GUESS) if workers > 0 else 0.0


def measured(job: JobView) -> bool:
    """True if the job's speed and its remaining work are both known."""
    profile = job.profile
    return profile.remaining is not None and (profile.fit is not None or bool(profile.speeds))


def time_left(job: JobView, workers: int) -> float:
    """Return the known seconds that a running job still needs on `workers`: 0 if overdue, else `inf` if unknown."""
    if workers <= 0:
        return float("inf")
    bound = job.max_time_s - job.run_s if job.max_time_s is not None else float("inf")
    if measured(job):
        speed = rates(job)(workers)
        left = (job.profile.remaining or 0.0) / speed if speed > 0 else float("inf")
        return max(0.0, min(left, bound))
    if job.estimate_s is not None:
        left = (job.estimate_s * guess(job.min_slots) - work_done(job)) / guess(workers)
        return max(0.0, min(left, bound))
    return max(0.0, bound)


def run_time(job: JobView, workers: int) -> float:
    """Return the seconds that a waiting job needs on `workers`; `inf` if unknown."""
    left = time_left(job, workers)
    return left if left > 0 else float("inf")


def work_done(job: JobView) -> float:
    """Return the work done, in the unit of the guess: single-worker seconds."""
    if job.run_s <= 0:
        return 0.0
    return job.run_s * guess(max(1, round(job.attained_s / job.run_s)))


def work_left(job: JobView, rate: Callable[[int], float] | None = None) -> float:
    """Return the slot-seconds that the job still needs at its minimum; never unknown, never below 1.

    `rate` is the job's `rates`, of callers that have them already.
    """
    least, profile = job.min_slots, job.profile
    remaining = profile.remaining
    if remaining is not None and (profile.fit is not None or profile.speeds):
        speed = (rate or rates(job))(least)
        return max(1.0, least * remaining / speed) if speed > 0 else UNKNOWN_S
    estimate, attained = job.estimate_s, job.attained_s
    if estimate is not None:
        return max(1.0, 0.1 * estimate * least, estimate * least - attained)
    return max(UNKNOWN_S * least, attained)
