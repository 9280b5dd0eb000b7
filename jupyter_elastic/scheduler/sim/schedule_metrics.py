"""Compute the figures of a simulated run, by which policies are compared.

Turnaround (JCT) counts from the *first submission*, makespan from the first submission to the last completion, wait
ends with the first start. Knows finished runs; must not know how they were made.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

KEYS = (
    "policy", "avg_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "avg_wait_s", "utilisation", "restarts_per_job",
    "rho_worst", "rho_over_105", "deadlines_met", "decision_ms_p50", "decision_ms_p99", "wall_s",
)  # fmt: skip
"""Columns of a comparison, in this order."""


class Span(NamedTuple):
    """A period on a constant number of slots, in seconds of the run."""

    start: float
    end: float
    slots: int


@dataclass
class JobTimeline:
    """History of one job. Times in seconds since the start of the trace."""

    name: str
    submitted: float
    model: str = ""
    deadline: float | None = None
    started: float | None = None
    ended: float | None = None
    restarts: int = 0
    """Changes of the job's slots after the first start."""
    spans: list[Span] = field(default_factory=list)
    alone: Callable[[float], float] | None = None
    """Seconds that the job would take alone on a (fractional) number of slots."""
    outcome: str = "completed"


@dataclass
class SimulatedRun:
    """One policy's run over a workload."""

    policy: str
    capacity: int
    timelines: list[JobTimeline]
    decisions: list[float] = field(default_factory=list)
    """Seconds that each decision took."""
    wall: float = 0.0
    rejected: int = 0
    """Number of plans that the core refused as illegal."""
    notes: list[str] = field(default_factory=list)

    @property
    def start(self) -> float:
        """Time of the first submission."""
        return min((timeline.submitted for timeline in self.timelines), default=0.0)

    @property
    def end(self) -> float:
        """Time of the last completion."""
        return max((timeline.ended for timeline in self.timelines if timeline.ended is not None), default=self.start)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie, between the two nearest ranks; nan if there are none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean(values: Sequence[float]) -> float:
    """Return the mean; nan of no values."""
    return sum(values) / len(values) if values else math.nan


def summary(run: SimulatedRun) -> dict[str, Any]:
    """Return the row of a run, by `KEYS`; an unknown figure is None."""
    jcts = [timeline.ended - timeline.submitted for timeline in run.timelines if timeline.ended is not None]
    makespan = run.end - run.start
    used = sum((span.end - span.start) * span.slots for timeline in run.timelines for span in timeline.spans)
    fairness = [value for value in rho(run) if value is not None]
    met = [
        timeline.ended is not None and timeline.ended <= timeline.deadline + 1e-9
        for timeline in run.timelines
        if timeline.deadline is not None
    ]
    waits = [timeline.started - timeline.submitted for timeline in run.timelines if timeline.started is not None]
    row: dict[str, Any] = {
        "policy": run.policy,
        "avg_jct_s": mean(jcts),
        "p50_jct_s": percentile(jcts, 0.5),
        "p99_jct_s": percentile(jcts, 0.99),
        "makespan_s": makespan,
        "avg_wait_s": mean(waits),
        "utilisation": used / (run.capacity * makespan) if makespan > 0 else math.nan,
        "restarts_per_job": mean([float(timeline.restarts) for timeline in run.timelines]),
        "rho_worst": max(fairness, default=math.nan),
        "rho_over_105": mean([float(value > 1.05) for value in fairness]),
        "deadlines_met": mean(met),
        "decision_ms_p50": percentile(run.decisions, 0.5) * 1e3,
        "decision_ms_p99": percentile(run.decisions, 0.99) * 1e3,
        "wall_s": run.wall,
    }
    return {key: None if isinstance(row[key], float) and not math.isfinite(row[key]) else row[key] for key in KEYS}


def rho(run: SimulatedRun) -> list[float | None]:
    """Return the finish-time fairness of each job: JCT over the time it would take alone on its 1/N share of the pool.

    N is the mean number of unfinished jobs during its time (Themis, NSDI 2020, as Shockwave, NSDI 2023, reports it).
    Above 1: a fixed share would have been better for the job. None if its time alone is unknown.
    """
    crowd = _Crowd(run.timelines)
    found: list[float | None] = []
    for timeline in run.timelines:
        if timeline.ended is None or timeline.alone is None or timeline.ended <= timeline.submitted:
            found.append(None)
            continue
        others = max(1.0, crowd.mean(timeline.submitted, timeline.ended))
        alone = timeline.alone(run.capacity / others)
        found.append((timeline.ended - timeline.submitted) / alone if alone > 0 else None)
    return found


class _Crowd:
    """Number of jobs over time: the integral of a step function, used for many intervals."""

    def __init__(self, timelines: Sequence[JobTimeline]) -> None:
        steps: dict[float, int] = {}
        for timeline in timelines:
            steps[timeline.submitted] = steps.get(timeline.submitted, 0) + 1
            if timeline.ended is not None:
                steps[timeline.ended] = steps.get(timeline.ended, 0) - 1
        self._times = sorted(steps)
        self._counts = list(accumulate(steps[at] for at in self._times))
        widths = [b - a for a, b in zip(self._times, self._times[1:], strict=False)]
        self._areas = [0.0, *accumulate(w * c for w, c in zip(widths, self._counts, strict=False))]

    def mean(self, start: float, end: float) -> float:
        return (self._area(end) - self._area(start)) / (end - start)

    def _area(self, at: float) -> float:
        index = bisect_right(self._times, at) - 1
        if index < 0:
            return 0.0
        return self._areas[index] + (at - self._times[index]) * self._counts[index]


def fluid_alone(rate: Callable[[int], float], work: float, sizes: Sequence[int]) -> Callable[[float], float]:
    """Return the seconds for `work` by fractional share: the best size, time-sliced if larger than the share."""
    table = [(size, rate(size)) for size in sizes]

    def alone(share: float) -> float:
        best = max((speed * min(1.0, share / size) for size, speed in table), default=0.0)
        return work / best if best > 0 else math.inf

    return alone
