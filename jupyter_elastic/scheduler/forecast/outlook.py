"""When will jobs start and end? One policy's future from the pool's state, with ranges from several possible futures.

Pure: knows views and policies; no clock, no chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.scheduler.forecast.lengths import Usual
from jupyter_elastic.scheduler.forecast.whatif import Forecast, JobForecast, forecast
from jupyter_elastic.types import JobId, JobView, Policy, View

FUTURES = 12
"""Possible futures from which a range is taken."""
_NEVER = JobForecast(job=0)


class Eta(Struct, frozen=True, kw_only=True):
    """When a job starts, or ends, in seconds from now: the best guess, and a range that should hold 8 times of 10."""

    job: JobId
    guess_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class Calibration:
    """How wrong earlier predictions were: the ratios of real to predicted waits, the newest last.

    A new range spans the middle 80 % of what happens in `FUTURES` possible futures (lengths that nobody knows are drawn
    anew in each) and, once there are `LEAST` ratios, the middle 80 % of those (split conformal prediction). `width`
    stretches that: each miss adds four times what a hit takes away, so that in the long run 8 of 10 hit, whatever the
    errors are like (adaptive conformal inference, Gibbs & Candès, 2021). Who starts at once teaches nothing.
    """

    ratios: tuple[float, ...] = ()
    width: float = 0.0

    LEAST = 10
    KEPT = 50
    SHARE = 0.8
    STEP = 0.25
    WIDEST = 3.0
    SMALL_S = 1.0

    def seen(self, eta: Eta, real_s: float) -> Calibration:
        """With one more observation: the real wait of a job that `eta` was predicted for."""
        if max(eta.high_s, real_s) <= self.SMALL_S:
            return self
        missed = not eta.low_s <= real_s <= eta.high_s
        width = self.width + self.STEP * (missed - (1 - self.SHARE))
        ratio = (real_s + self.SMALL_S) / (eta.guess_s + self.SMALL_S)
        return Calibration((*self.ratios, ratio)[-self.KEPT :], min(max(width, 0.0), self.WIDEST))

    def range(self, guess: float, low: float, high: float) -> tuple[float, float]:
        """The range around a guess, given the possible futures' own low and high."""
        small = self.SMALL_S
        low, high = min(low, guess), max(high, guess)
        if len(self.ratios) >= self.LEAST:
            ordered = sorted(self.ratios)
            count = len(ordered)
            below = max(0, math.floor((1 - self.SHARE) / 2 * (count + 1)) - 1)
            above = min(count - 1, math.ceil((1 + self.SHARE) / 2 * (count + 1)) - 1)
            low = min(low, (guess + small) * ordered[below] - small)
            high = max(high, (guess + small) * ordered[above] - small)
        stretch = math.exp(self.width)
        return max(0.0, (low + small) / stretch - small), max(0.0, (high + small) * stretch - small)


class JobOutlook(Struct, frozen=True, kw_only=True):
    """What will most likely become of a job. Seconds from now."""

    job: JobId
    start: Eta | None = None
    """Of a job that waits; None for others, and for one whose start is not within sight."""
    end: Eta | None = None
    """None: not within sight."""
    sizes: tuple[tuple[float, int], ...] = ()
    """As in `JobForecast`."""


class Outlook(Struct, frozen=True, kw_only=True):
    """The future of a pool's jobs under the policy that decides now."""

    jobs: tuple[JobOutlook, ...] = ()
    note: str = ""
    """Why it is incomplete."""


def waits(view: View, policy: Policy, *, past: Calibration | None = None, usual: Usual | None = None) -> list[Eta]:
    """When each queued job will start under a policy, with a range; jobs that never start in sight are left out."""
    if not any(job.phase == "queued" for job in view.jobs):
        return []
    central, futures = _futures(view, policy, usual, only_starts=True)
    return list(_start_etas(view, central, futures, past or Calibration()).values())


def outlook(
    view: View,
    policy: Policy,
    *,
    starts: Calibration | None = None,
    ends: Calibration | None = None,
    usual: Usual | None = None,
) -> Outlook:
    """Starts, ends and sizes of all jobs under a policy. The starts are those of `waits`."""
    if not view.jobs:
        return Outlook()
    central, futures = _futures(view, policy, usual, only_starts=False)
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
    view: View, policy: Policy, usual: Usual | None, *, only_starts: bool
) -> tuple[Forecast, list[dict[JobId, JobForecast]]]:
    """What is most likely, and the possible futures by job."""
    central = forecast(view, policy, usual=usual, only_starts=only_starts)
    futures = [
        forecast(
            view,
            policy,
            stretch=lambda job, number=number: _length_factor(job, number, view.seed),  # type: ignore[misc]
            usual=usual,
            only_starts=only_starts,
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


def _eta(job: JobId, guess: float, possible: list[float | None], past: Calibration) -> Eta:
    """The range of what happens in the possible futures, but for the first and the last of them."""
    ordered = sorted(math.inf if when is None else when for when in possible)
    high = next((when for when in (ordered[-2], ordered[-3], ordered[-4]) if math.isfinite(when)), guess)
    low, high = past.range(guess, ordered[1], high)
    return Eta(job=job, guess_s=guess, low_s=low, high_s=high)


def _length_factor(job: JobView, number: int, seed: int) -> float:
    """How much longer a job may be than thought, in one possible future: log-normal with mean 1, the same every time.

    Lengths nobody knows vary as those of published clusters do (sigma 1.2), estimates by half, reports by little.
    """
    if job.profile.remaining is not None:
        sigma = 0.15
    else:
        sigma = 1.2 if job.estimate_s is None and job.max_time_s is None else 0.5
    bits = (job.job * 2654435761 + number * 40503 + seed * 97 + 12345) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 15)) * 2246822519) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 13)) * 3266489917) & 0xFFFFFFFF
    uniform = ((bits ^ (bits >> 16)) + 0.5) / 4294967296
    return math.exp(sigma * NormalDist().inv_cdf(uniform) - sigma * sigma / 2)
