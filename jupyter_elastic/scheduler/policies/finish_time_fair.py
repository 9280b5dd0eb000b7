"""Finish-time fairness: nobody is to be slower than on a fixed share of the pool.

Source: Mahajan et al., "Themis" (NSDI 2020), and Zheng et al., "Shockwave" (NSDI 2023). A job's rho is the turnaround
that it is heading for, over the time it would take alone on 1/N of the pool, N the unfinished jobs. Minimums go to the
largest rho first; free slots go where they lower rho most, so that jobs which are behind catch up and no slot is held
back. Waiting raises rho, so nobody starves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from jupyter_elastic.scheduler.policies.common import Draft, most
from jupyter_elastic.scheduler.policies.elastic import Guard, Guarded, Value, admit, climb, settle
from jupyter_elastic.scheduler.policies.speed import rates, work_left
from jupyter_elastic.types import JobView, Plan, View

FRESH = 10.0
"""A job that has just started keeps its place for this many times its rescale cost."""


class FinishTimeFair:
    """The worst rho first."""

    name: ClassVar[str] = "finish_time_fair"
    summary: ClassVar[str] = "Whoever is furthest behind its fair finish time goes first (Themis, Shockwave)."
    work_conserving: ClassVar[bool] = False
    interval_s: ClassVar[float | None] = 30.0

    class Options(Guarded, frozen=True):
        """What can be set."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def plan(self, view: View) -> Plan:
        """Minimums to those behind, then the greedy climb."""
        draft = Draft(view)
        draft.pin()
        jobs = [*draft.running, *draft.waiting]
        share = view.capacity / max(1, len(jobs))
        rho = {job.job: self._rho(job, view.now, share) for job in jobs}
        order = sorted(jobs, key=lambda job: (-job.priority, -rho[job.job], job.submitted_at, job.job))
        admit(draft, order)
        self._grow(draft, list(draft.jobs.values()), rho)
        settle(draft, Guard(self.options, view.now), lambda some: self._grow(draft, some, rho))
        return draft.plan()

    @staticmethod
    def _rho(job: JobView, now: float, share: float) -> float:
        """Turnaround that the job is heading for on a fair share, over its time alone on that share."""
        left = _alone(job, share)
        waited = max(0.0, now - job.submitted_at - job.run_s)
        rho = (waited + job.run_s + left) / max(job.run_s + left, 1e-9)
        fresh = job.size.workers and job.changed_at is not None
        if fresh and now - (job.changed_at or 0.0) < FRESH * job.profile.rescale_cost_s:
            rho += 1e6
        return rho

    @staticmethod
    def _grow(draft: Draft, jobs: Iterable[JobView], rho: dict[int, float]) -> None:
        def worth(job: JobView) -> Value:
            speed = rates(job)
            unit = max(speed(job.min_slots), 1e-300)
            weight = min(rho[job.job], 100.0) ** 2
            return lambda workers: -weight * unit / max(speed(workers), 1e-300)

        climb(draft, jobs, worth)


def _alone(job: JobView, share: float) -> float:
    """Seconds to go alone on a share of the pool, time-sliced where the share is below the minimum."""
    least = job.min_slots
    if share <= least:
        return work_left(job) / least * (least / max(share, 1e-9))
    speed = rates(job)
    workers = most(job, int(share)) or least
    return work_left(job) / least * speed(least) / max(speed(workers), 1e-300)
