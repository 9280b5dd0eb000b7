"""Learn a job's speed by size, its remaining work and the price of a rescale from its own progress.

Knows progress reports and when a generation settled; fed by events alone, so that a replay, and a job's view, learn the
same. Must not know slots or policies. The fit is computed on demand, not with each report.
The model is that of Optimus (Peng et al., EuroSys 2018, section 3.2) for all-reduce: T(n) = a/n + b + d*n seconds per
sample with a, b, d >= 0, by non-negative least squares on relative errors.
"""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from statistics import median
from typing import TypeAlias

from msgspec import Struct, field

from jupyter_elastic.scheduler.core.nnls import nnls
from jupyter_elastic.types import Profile, Progress, Speed

RECENT = 9
"""Measurements kept for each size; their median is the speed, so that one slow step does not show."""
BRIEF_S = 30.0
"""Seconds of measuring, all times together, below which a size counts as briefly measured."""
LOSSES = 32
"""Maximum number of points of the loss curve; beyond it every second one goes, so old points lie far apart."""
LOSS = ("loss", "train_loss")
"""Names of the metric whose curve is kept."""

_NOTHING = Profile()
_Coefficients: TypeAlias = tuple[float, float, float]


class Learned(Struct):
    """All that is remembered of a job's progress."""

    points: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    """The last speeds at each size (workers, servers), samples/s, oldest first."""
    measured_s: dict[tuple[int, int], float] = field(default_factory=dict)
    """Seconds between the reports that gave the speeds, by size."""
    warm: bool = False
    """True once this generation has reported; its first report measures the pause, not the speed."""
    last_at: float = 0.0
    last_samples: float | None = None
    pauses: int = 0
    paused_s: float = 0.0
    noise_scale: float | None = None
    starts: int = 0
    started_s: float = 0.0
    """Seconds of all starts together, from the order to the first generation."""
    reported_at: float | None = None
    gaps: list[float] = field(default_factory=list)
    """Seconds between the last reports."""
    losses: list[tuple[float, float]] = field(default_factory=list)
    """Points (samples, loss), in order of the samples."""

    def settled(self, *, rescaled: bool, pause_s: float, start_s: float = 0.0) -> None:
        """Note that a generation settled; not `rescaled`: the attempt's first, `start_s` seconds after the order."""
        self.cold()
        if rescaled:
            self.pauses += 1
            self.paused_s += pause_s
        elif start_s > 0:
            self.starts += 1
            self.started_s += start_s

    def cold(self) -> None:
        """Treat the next report as no continuation of the previous one."""
        self.warm = False
        self.last_samples = None

    def add(self, at: float, progress: Progress, workers: int, servers: int) -> None:
        """Learn from a report that came from a settled generation of this size."""
        gap = at - self.reported_at if self.warm and self.reported_at is not None else 0.0
        if gap > 0:
            self.gaps = [*self.gaps[-2:], gap]
        self.reported_at = at
        self._add_loss(progress)
        if progress.noise_scale is not None:
            self.noise_scale = progress.noise_scale
        if progress.world_size is not None and progress.world_size != workers:
            return  # sent before the rescale: it belongs to neither size
        rate = progress.samples_per_s
        if rate is None and progress.samples is not None and self.last_samples is not None and at > self.last_at:
            rate = (progress.samples - self.last_samples) / (at - self.last_at)
        if self.warm and rate is not None and rate > 0 and isfinite(rate) and workers > 0:
            recent = self.points.setdefault((workers, servers), [])
            recent.append(rate)
            del recent[:-RECENT]
            size = workers, servers
            self.measured_s[size] = self.measured_s.get(size, 0.0) + max(gap, 0.0)
        self.warm = True
        if progress.samples is not None:
            self.last_at, self.last_samples = at, progress.samples

    def _add_loss(self, progress: Progress) -> None:
        loss = next((progress.metrics[name] for name in LOSS if name in progress.metrics), None)
        if loss is None or progress.samples is None:
            return
        while self.losses and self.losses[-1][0] >= progress.samples:  # rolled back to a commit
            self.losses.pop()
        self.losses.append((progress.samples, loss))
        if len(self.losses) > LOSSES:
            self.losses = self.losses[::2]

    @property
    def rescale_cost_s(self) -> float:
        """Mean pause in seconds of the rescales so far."""
        return self.paused_s / self.pauses if self.pauses else _NOTHING.rescale_cost_s

    def profile(self, progress: Progress | None) -> Profile:
        """Return the profile that a policy sees."""
        if progress is None and not self.pauses and not self.starts:
            return _NOTHING
        speeds = tuple(
            Speed(
                workers=workers,
                servers=servers,
                samples_per_s=median(recent),
                brief=self.measured_s.get((workers, servers), 0.0) < BRIEF_S,
            )
            for (workers, servers), recent in sorted(self.points.items())
        )
        return Profile(
            speeds=speeds,
            fit=fit({speed.workers: 1 / speed.samples_per_s for speed in speeds if not speed.servers}),
            done=progress.samples if progress else None,
            remaining=remaining(progress),
            rescale_cost_s=self.rescale_cost_s,
            start_cost_s=self.started_s / self.starts if self.starts else 0.0,
            noise_scale=self.noise_scale,
            reported_at=self.reported_at,
            report_period_s=max(self.gaps, default=None),
            losses=tuple(self.losses),
        )


def remaining(progress: Progress | None) -> float | None:
    """Return the samples to go, from the total if the job reports it, else from its epochs; None if unknown."""
    if progress is None or progress.samples is None:
        return None
    if progress.total_samples is not None:
        return max(progress.total_samples - progress.samples, 0.0)
    if progress.epochs is not None and progress.epoch:
        return max(progress.samples / progress.epoch * (progress.epochs - progress.epoch), 0.0)
    return None


def fit(seconds: dict[int, float]) -> _Coefficients | None:
    """Fit (a, b, d) >= 0 of T(n) = a/n + b + d*n with the least squared relative error; None without a measurement.

    Of equally good fits the smallest support wins: one point gives perfect scaling, two points give Amdahl's law.
    """
    return _fit(tuple(seconds.items()))


@lru_cache(4096)  # a job is looked at much more often than its speeds change
def _fit(seconds: tuple[tuple[int, float], ...]) -> _Coefficients | None:
    rows = [(1 / n / t, 1 / t, n / t) for n, t in seconds if n > 0 and t > 0 and isfinite(t)]
    if not rows:
        return None
    found = nnls(rows, [1.0] * len(rows))
    return None if found is None else (found[0], found[1], found[2])
