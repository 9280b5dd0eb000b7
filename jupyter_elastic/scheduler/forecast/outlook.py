"""Predict starts and ends of jobs under one policy from the pool's state, with ranges from several futures.

Knows views and policies, no clock; its chance comes from a seed, so that the same state gives the same ranges.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist

from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.scheduler.forecast.job_lengths import UNKNOWN_SIGMA, Usual, measured
from jupyter_elastic.scheduler.forecast.whatif import TOO_SLOW, Forecast, JobForecast, Over, forecast, never
from jupyter_elastic.types import JobId, JobView, Policy, View

FUTURES = 12
"""Possible futures from which a range is taken."""
DAY_S = 86_400.0
SOON_S = 20.0
"""Seconds as which a shorter guess counts: a minute more or less is near enough."""
_NEVER = JobForecast(job=0)


class Eta(Struct, frozen=True, kw_only=True):
    """Predicted start or end of a job in seconds from now: a best guess, and a range that should hold 8 times of 10."""

    job: JobId
    guess_s: float
    low_s: float
    high_s: float
    possible: tuple[float, float]
    """Range of the possible futures alone, before it is adapted to earlier errors."""

    @property
    def vague(self) -> bool:
        """True if the prediction says nothing: it reaches beyond a day, or is wider than three times the best guess."""
        return self.high_s > DAY_S or self.high_s - self.low_s > 3 * max(self.guess_s, SOON_S)


@dataclass(frozen=True)
class Calibration:
    """Errors of earlier predictions: distances of real times from the range of the possible futures.

    A new range spans the middle 80 % of what happens in `FUTURES` possible futures (unknown lengths are drawn anew in
    each). Each of its ends is then moved outwards, so far that 9 of 10 of the `KEPT` last real times would have been on
    its inner side (conformalized quantile regression, Romano, Patterson & Candès, 2019), in logarithms. Never inwards:
    the errors of first predictions don't hold for later and better ones. `width` moves both ends further: each miss
    adds four times what a hit takes away, so that in the long run 8 of 10 hit, whatever the errors are like (adaptive
    conformal inference, Gibbs & Candès, 2021). Jobs that start at once teach nothing.
    """

    early: tuple[float, ...] = ()
    """Logarithmic distances of real times before the range, below 0 if they were not before it; the newest last."""
    late: tuple[float, ...] = ()
    """Logarithmic distances behind the range."""
    width: float = 0.0

    KEPT = 50
    SHARE = 0.8
    SMALL_S = 1.0
    STEP = 0.25
    WIDEST = 3.0

    def seen(self, eta: Eta, real_s: float) -> Calibration:
        """Add an observation: the real wait of a job that `eta` was predicted for."""
        if max(eta.high_s, real_s) <= self.SMALL_S:
            return self
        real, low, high = (math.log(seconds + self.SMALL_S) for seconds in (real_s, *eta.possible))
        missed = not eta.low_s <= real_s <= eta.high_s
        width = min(max(self.width + self.STEP * (missed - (1 - self.SHARE)), 0.0), self.WIDEST)
        return Calibration((*self.early, low - real)[-self.KEPT :], (*self.late, real - high)[-self.KEPT :], width)

    def range(self, guess: float, low: float, high: float) -> tuple[float, float]:
        """Return the range around a guess, given the possible futures' own low and high."""
        small = self.SMALL_S
        low = (low + small) / math.exp(self._moved(self.early)) - small
        high = (high + small) * math.exp(self._moved(self.late)) - small
        return max(0.0, min(low, guess)), max(high, guess)

    def _moved(self, outside: tuple[float, ...]) -> float:
        if not outside:
            return 0.0
        place = math.ceil((1 + self.SHARE) / 2 * (len(outside) + 1))
        return max(0.0, sorted(outside)[min(place, len(outside)) - 1]) + self.width


class JobOutlook(Struct, frozen=True, kw_only=True):
    """Most likely future of a job, in seconds from now."""

    job: JobId
    start: Eta | None = None
    """Start of a waiting job; None for others, and for a job whose start is not within sight."""
    end: Eta | None = None
    """End of the job; None: not within sight."""
    sizes: tuple[tuple[float, int], ...] = ()
    """Slots over time; see `JobForecast`."""


class Outlook(Struct, frozen=True, kw_only=True):
    """Future of a pool's jobs under the active policy."""

    jobs: tuple[JobOutlook, ...] = ()
    note: str = ""
    """Reason why the outlook is incomplete."""


def waits(
    view: View,
    policy: Policy,
    *,
    past: Calibration | None = None,
    usual: Usual | None = None,
    over: Over = never,
) -> list[Eta]:
    """Predict the start of each queued job under a policy, with a range; jobs that never start in sight are left out.

    Empty if the time is `over` before all is known.
    """
    if not any(job.phase == "queued" for job in view.jobs):
        return []
    central, futures = _futures(view, policy, usual, over, only_starts=True)
    if over():
        return []
    return list(_start_etas(view, central, futures, past or Calibration()).values())


def outlook(
    view: View,
    policy: Policy,
    *,
    starts: Calibration | None = None,
    ends: Calibration | None = None,
    usual: Usual | None = None,
    over: Over = never,
) -> Outlook:
    """Predict starts, ends and sizes of all jobs under a policy. The starts are those of `waits`."""
    if not view.jobs:
        return Outlook()
    central, futures = _futures(view, policy, usual, over, only_starts=False)
    if over():
        return Outlook(note=TOO_SLOW)
    start = _start_etas(view, central, futures, starts or Calibration())
    past = ends or Calibration()
    found = []
    for one in central.jobs:
        end = None
        if one.finish_s is not None:
            end = _eta(one.job, one.finish_s, [future[one.job].finish_s for future in futures], past)
            if (begin := start.get(one.job)) is not None:  # starts and ends have learned from errors of their own
                end = replace(end, low_s=max(end.low_s, begin.low_s), high_s=max(end.high_s, begin.high_s))
        found.append(JobOutlook(job=one.job, start=start.get(one.job), end=end, sizes=one.sizes))
    return Outlook(jobs=tuple(found), note=central.note)


def _futures(
    view: View, policy: Policy, usual: Usual | None, over: Over, *, only_starts: bool
) -> tuple[Forecast, list[dict[JobId, JobForecast]]]:
    """Return the most likely future, and the possible futures by job."""
    central = forecast(view, policy, usual=usual, only_starts=only_starts, over=over)
    factors = {job.job: _length_factors(job, view.seed, usual) for job in view.jobs}
    futures = [
        forecast(
            view,
            policy,
            stretch=lambda job, number=number: factors[job.job][number],  # type: ignore[misc]
            usual=usual,
            only_starts=only_starts,
            over=over,
        )
        for number in range(FUTURES)
    ]
    return central, [{job.job: job for job in future.jobs} for future in futures]


def _start_etas(
    view: View, central: Forecast, futures: list[dict[JobId, JobForecast]], past: Calibration
) -> dict[JobId, Eta]:
    queued = {job.job for job in view.jobs if job.phase == "queued"}
    return {
        one.job: _eta(one.job, one.start_s, [future.get(one.job, _NEVER).start_s for future in futures], past)
        for one in sorted(central.jobs, key=lambda one: one.job)
        if one.job in queued and one.start_s is not None
    }


def _eta(job: JobId, guess: float, futures: list[float | None], past: Calibration) -> Eta:
    """Return the range of the possible futures without the first and the last of them."""
    ordered = sorted(math.inf if when is None else when for when in futures)
    high = next((when for when in (ordered[-2], ordered[-3], ordered[-4]) if math.isfinite(when)), guess)
    possible = (min(ordered[1], guess), max(high, guess))
    low, high = past.range(guess, *possible)
    return Eta(job=job, guess_s=guess, low_s=low, high_s=high, possible=possible)


def _length_factors(job: JobView, seed: int, usual: Usual | None) -> list[float]:
    """Return factors of a job's length in each possible future: log-normal with mean 1, the same every time.

    Estimates and first reports vary by half, later reports by little. Each of as many equal parts of the distribution
    is drawn once, in an order of the job's own (Latin hypercube sampling): so few futures span the distribution.
    """
    if job.profile.remaining is not None:
        sigma = 0.15 if measured(job) else 0.5
    elif job.estimate_s is not None or job.max_time_s is not None:
        sigma = 0.5
    else:
        length = usual(job) if usual is not None else None
        sigma = UNKNOWN_SIGMA if length is None else length.sigma
    parts = list(range(FUTURES))
    random.Random(f"{seed} {job.job}").shuffle(parts)  # noqa: S311 - no secret
    normal = NormalDist(-sigma * sigma / 2, sigma)
    return [math.exp(normal.inv_cdf((part + 0.5) / FUTURES)) for part in parts]
