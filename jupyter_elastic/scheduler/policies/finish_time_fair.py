"""Finish-time fairness: nobody is to be slower than on a fixed share of the pool.

Source: Mahajan et al., "Themis" (NSDI 2020), and Zheng et al., "Shockwave" (NSDI 2023). A job's rho is the turnaround
that it is heading for, over the time it would take alone on 1/N of the pool, N the unfinished jobs. Minimums go to the
largest rho first; free slots go where they lower rho most, so that jobs which are behind catch up and no slot is held
back. Waiting raises rho, so nobody starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from jupyter_elastic.scheduler.policies.common import Draft, most
from jupyter_elastic.scheduler.policies.elastic import Guard, Guarded, Value, climb, seated, settle
from jupyter_elastic.scheduler.policies.order import ordered
from jupyter_elastic.scheduler.policies.speed import UNKNOWN_S, rates, work_left
from jupyter_elastic.types import JobView, Plan, View

FRESH = 10.0
"""A job that has just started keeps its place for this many times its rescale cost."""


class FinishTimeFair:
    """The worst rho first."""

    name: ClassVar[str] = "finish_time_fair"
    summary: ClassVar[str] = "Whoever is furthest behind its fair finish time goes first (Themis, Shockwave)."
    work_conserving: ClassVar[bool] = True
    interval_s: ClassVar[float | None] = 30.0

    class Options(Guarded, frozen=True):
        """What can be set."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def plan(self, view: View) -> Plan:
        """Minimums to those behind, then the greedy climb."""
        draft = Draft(view)
        draft.pin()
        share = view.capacity / max(1, len(draft.running) + len(draft.waiting))
        order = self._behind(draft, share)
        jobs = seated(draft, order)
        self._grow(draft, jobs, share)
        settle(draft, Guard(self.options, view.now), lambda some: self._grow(draft, some, share))
        return draft.plan()

    @staticmethod
    def _behind(draft: Draft, share: float) -> Iterator[JobView]:
        """The largest rho first; who has just started keeps its place."""
        now = draft.view.now
        small = share <= 1.0
        waiting = [
            # the usual case, spelled out: never started, nothing measured, less than a slot each
            (job.submitted_at - now)
            / (work if (work := (UNKNOWN_S if (s := job.estimate_s) is None else s) * job.min_slots) > 1.0 else 1.0)
            if small and not job.attained_s and job.profile.remaining is None
            else (1.0 - _rho(job, now, share)) / min(share, 1.0)
            for job in draft.waiting
        ]
        running = []
        for job in draft.running:
            fresh = job.changed_at is None or now - job.changed_at < FRESH * job.profile.rescale_cost_s
            running.append(-float("inf") if fresh else (1.0 - _rho(job, now, share)) / min(share, 1.0))
        return ordered(draft, waiting, running)

    @staticmethod
    def _grow(draft: Draft, jobs: Iterable[JobView], share: float) -> None:
        def worth(job: JobView) -> Value:
            speed = rates(job)
            unit = max(speed(job.min_slots), 1e-300)
            weight = min(_rho(job, draft.view.now, share), 100.0) ** 2
            return lambda workers: -weight * unit / max(speed(workers), 1e-300)

        climb(draft, jobs, worth)


def _rho(job: JobView, now: float, share: float) -> float:
    """Turnaround that the job is heading for on a fair share, over its time alone on that share."""
    going = job.run_s + _alone(job, share)
    return (max(0.0, now - job.submitted_at - job.run_s) + going) / max(going, 1e-9)


def _alone(job: JobView, share: float) -> float:
    """Seconds to go alone on a share of the pool, time-sliced where the share is below the minimum."""
    least = job.min_slots
    if share <= least:
        return work_left(job) / least * (least / max(share, 1e-9))
    speed = rates(job)
    workers = most(job, int(share)) or least
    return work_left(job) / least * speed(least) / max(speed(workers), 1e-300)
