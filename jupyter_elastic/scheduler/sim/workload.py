"""Define the jobs that the simulator runs, and generate synthetic ones.

A task has an amount of work in samples and a speed in samples/s for each number of workers. Knows no file formats and
no policy. The generator is seeded: the same seed is the same workload on every machine.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jupyter_elastic.types.errors import BadRequest


@dataclass(frozen=True, kw_only=True)
class TraceJob:
    """A job of a trace."""

    name: str
    submitted: float
    """Seconds since the start of the trace."""
    work: float
    """Samples to train."""
    speed: Callable[[int], float]
    """Samples per second by number of workers."""
    min_slots: int = 1
    max_slots: int = 1
    sizes: tuple[int, ...] = ()
    owner: str = "trace"
    group: str = ""
    model: str = ""
    priority: int = 0
    deadline: float | None = None
    """Deadline in seconds since the start of the trace."""
    estimate: float | None = None
    """Owner's guess of the running time at `min_slots`, in seconds."""
    max_time_s: float | None = None
    """Time limit, in seconds with slots."""
    min_servers: int = 0
    max_servers: int = 0
    server_speed: Callable[[int, int], float] | None = None
    """Samples per second by number of workers and servers; replaces `speed` if there are servers."""
    reports: bool = True
    """True if the job reports its progress; a silent job leaves the policy guessing."""

    def allowed(self) -> tuple[int, ...]:
        """Return every size that the job can run on."""
        return self.sizes or tuple(range(self.min_slots, self.max_slots + 1))

    def rate(self, workers: int, servers: int) -> float:
        """Return the samples per second on these numbers of workers and parameter servers."""
        return self.server_speed(workers, servers) if servers and self.server_speed else self.speed(workers)

    def alone(self, slots: int) -> float:
        """Return the seconds from start to end on a constant number of slots."""
        speed = self.speed(slots)
        return self.work / speed if speed > 0 else math.inf


@dataclass(frozen=True)
class Measured:
    """A speed known at some sizes: linear between them, proportional below the smallest, constant above the largest."""

    points: tuple[tuple[int, float], ...]
    """Points (workers, samples per second), ascending."""

    @classmethod
    def of(cls, points: Mapping[int, float]) -> Measured:
        """Make the speed from a mapping; BadRequest if there is no point."""
        if not points:
            raise BadRequest("a speed needs at least one measured point")
        return cls(tuple(sorted(points.items())))

    def __call__(self, workers: int) -> float:
        """Return the samples per second."""
        if workers <= 0:
            return 0.0
        right = bisect_left(self.points, (workers,))
        if right < len(self.points) and self.points[right][0] == workers:
            return self.points[right][1]
        if right == 0:
            return self.points[0][1] * workers / self.points[0][0]
        if right == len(self.points):
            return self.points[-1][1]
        (n0, s0), (n1, s1) = self.points[right - 1], self.points[right]
        return s0 + (s1 - s0) * (workers - n0) / (n1 - n0)


@dataclass(frozen=True)
class SpeedCurve:
    """Speed by T(n) = a/n + b + d*n seconds per sample, the all-reduce form of Optimus (EuroSys 2018)."""

    a: float
    b: float
    d: float

    def __call__(self, workers: int) -> float:
        """Return the samples per second."""
        return 1.0 / (self.a / workers + self.b + self.d * workers) if workers > 0 else 0.0


@dataclass(frozen=True)
class Power:
    """Speed of which n workers have n**exponent times as much as one."""

    unit: float = 1.0
    exponent: float = 0.9

    def __call__(self, workers: int) -> float:
        """Return the samples per second."""
        return self.unit * float(workers) ** self.exponent if workers > 0 else 0.0


def synthetic(
    jobs: int = 60,
    *,
    slots: int = 16,
    load: float = 1.0,
    mean_s: float = 600.0,
    users: int = 4,
    seed: int = 0,
    rigid: float = 0.2,
    deadlines: float = 0.0,
) -> list[TraceJob]:
    """Generate elastic jobs whose work arrives `load` times as fast as the pool could do it.

    Arrivals are Poisson, lengths log-normal (many short, few long, sigma 1.4 as in published cluster traces) around
    `mean_s` seconds on one slot, speed-ups concave with 40 to 95 % efficiency at eight workers. `rigid` and `deadlines`
    are the shares of jobs that want exactly one size, and that have a deadline of 1.2 to 3 times their fastest time.
    """
    if jobs < 1 or slots < 1 or users < 1:
        raise BadRequest("a synthetic workload needs at least one job, one slot and one user")
    if not (load > 0 and mean_s > 0):
        raise BadRequest("load and mean_s must be above 0")
    chance = random.Random(seed)  # noqa: S311 - a workload, no secret
    sigma, at = 1.4, 0.0
    gap = mean_s / (slots * load)
    tasks = []
    for index in range(jobs):
        length = mean_s * math.exp(chance.gauss(-sigma * sigma / 2, sigma))
        length = max(5.0, min(length, 50 * mean_s))
        efficiency = chance.uniform(0.4, 0.95)
        rest = (1 / efficiency - 1) / 7 / (1 + 8 / 20)  # T(8) is 1/(8 efficiency) of T(1), mostly by a constant part
        speed = SpeedCurve(1.0 - rest * 1.05, rest, rest / 20)
        most = min(slots, chance.choice((1, 2, 4, 4, 8, 8, 16)))
        least = most if chance.random() < rigid else 1
        deadline = None
        if chance.random() < deadlines:
            deadline = at + length / speed(most) * chance.uniform(1.2, 3.0) + 60.0
        user = f"user{chance.randrange(users) + 1}"
        tasks.append(
            TraceJob(
                name=f"job-{index:03d}",
                submitted=round(at, 3),
                work=length * speed(1),
                speed=speed,
                min_slots=least,
                max_slots=most,
                owner=user,
                deadline=deadline,
                model=f"curve {efficiency:.1f}",
            )
        )
        at += chance.expovariate(1 / gap)
    return tasks
