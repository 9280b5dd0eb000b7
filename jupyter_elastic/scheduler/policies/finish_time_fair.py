"""Finish-time fairness: nobody is to be slower than on a fixed share of the pool.

Source: Mahajan et al., "Themis" (NSDI 2020), and Zheng et al., "Shockwave" (NSDI 2023). A job's rho is the turnaround
that it is heading for, over the time it would take alone on 1/N of the pool, N the unfinished jobs. Minimums go to the
largest rho first; free slots go where they lower rho most, so that jobs which are behind catch up and no slot is held
back. Waiting raises rho, so nobody starves.

Fairness alone leaves the longest jobs to run at the end, in a pool that empties (what Shockwave plans against). A job
that takes as long, on all the slots it can use, as all the work there is on the whole pool is critical: each second
that it waits is one more of makespan. It goes before all whose rho is below `limit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from jupyter_elastic.scheduler.policies.common import Draft, most
from jupyter_elastic.scheduler.policies.elastic import Elastic, Guarded, Value, climb, seated
from jupyter_elastic.scheduler.policies.order import ordered
from jupyter_elastic.scheduler.policies.speed import UNKNOWN_S, rates, work_left
from jupyter_elastic.types import JobView

FRESH = 10.0
"""A job that has just started keeps its place for this many times its rescale cost."""


class FinishTimeFair(Elastic):
    """The worst rho first."""

    name = "finish_time_fair"
    summary = "Whoever is furthest behind its fair finish time goes first (Themis, Shockwave)."

    class Options(Guarded, frozen=True):
        limit: Annotated[
            float, Meta(ge=1, le=1e6, description="a job that makespan depends on goes before all whose rho is below")
        ] = 2.5

    options: Options

    def _seat(self, draft: Draft) -> Sequence[JobView]:
        return seated(draft, self._behind(draft, _share(draft)))

    def _behind(self, draft: Draft, share: float) -> Iterator[JobView]:
        """The largest rho first; who has just started keeps its place."""
        now, inside = draft.view.now, min(max(share, 1e-9), 1.0)
        works = [
            # the usual case, spelled out: never started, nothing measured
            (job.estimate_s or UNKNOWN_S) * job.min_slots
            if not job.attained_s and job.profile.remaining is None
            else work_left(job)
            for job in draft.waiting
        ]
        held = [work_left(job) for job in draft.running]
        capacity, limit = max(1, draft.capacity), self.options.limit
        drain = (sum(works) + sum(held)) / capacity

        def place(job: JobView, work: float) -> float:
            rho = _rho(job, now, share, work)
            if work >= drain and rho < limit and _alone(job, capacity, work) >= drain:
                rho = limit
            return (1.0 - rho) / inside

        edge = drain if share <= 1.0 else 0.0

        def places(jobs: list[JobView], works: list[float]) -> list[float]:
            return [
                # one that has less than a slot as its share and isn't critical, spelled out
                (job.submitted_at + (run := job.run_s) - now) / (work + run * share)
                if work < edge
                else place(job, work)
                for job, work in zip(jobs, works, strict=True)
            ]

        running = [
            -float("inf")
            if job.changed_at is None or now - job.changed_at < FRESH * job.profile.rescale_cost_s
            else key
            for job, key in zip(draft.running, places(draft.running, held), strict=True)
        ]
        return ordered(draft, places(draft.waiting, works), running)

    def _grow(self, draft: Draft, jobs: Sequence[JobView]) -> None:
        share = _share(draft)

        def worth(job: JobView) -> Value:
            speed = rates(job)
            unit = max(speed(job.min_slots), 1e-300)
            weight = min(_rho(job, draft.view.now, share, work_left(job, speed)), 100.0) ** 2
            return lambda workers: -weight * unit / max(speed(workers), 1e-300)

        climb(draft, jobs, worth)


def _share(draft: Draft) -> float:
    """Slots that are everybody's 1/N of the pool."""
    return draft.view.capacity / max(1, len(draft.running) + len(draft.waiting))


def _rho(job: JobView, now: float, share: float, work: float) -> float:
    """Turnaround that the job is heading for on a fair share, over its time alone on that share."""
    going = job.run_s + _alone(job, share, work)
    waited = now - job.submitted_at - job.run_s
    return (waited + going) / going if waited > 0.0 else 1.0


def _alone(job: JobView, share: float, work: float) -> float:
    """Seconds to go alone on a share of the pool, time-sliced where the share is below the minimum."""
    least = job.min_slots
    if share <= least:
        return work / max(share, 1e-9)
    speed = rates(job)
    workers = most(job, int(share)) or least
    return work / least * speed(least) / max(speed(workers), 1e-300)
