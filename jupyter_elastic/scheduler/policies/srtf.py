"""Shortest remaining time first, rigid and elastic.

Source: Voda's SRJF and Elastic-SRJF (Hsieh & Lee, IC2E 2023), with ageing: every second of waiting makes a job look
`aging` seconds shorter, so that an endless stream of short jobs starves no job. The remaining time comes from the job's
profile, else from its owner's estimate, else it is assumed to be as long as the job has had.
"""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_elastic.scheduler.policies.common import (
    Aging,
    Base,
    Configured,
    Draft,
    LeastGain,
    StartSize,
    Stay,
    seat,
)
from jupyter_elastic.scheduler.policies.elastic import Elastic, ElasticOptions, climb, seated
from jupyter_elastic.scheduler.policies.order import shortest_first
from jupyter_elastic.scheduler.policies.speed import rates
from jupyter_elastic.types import JobView, Plan, View


class Srtf(Configured):
    """Whole jobs, the shortest remaining time first, with preemption."""

    name = "srtf"
    summary = "Shortest remaining time first, with preemption; waiting counts in a job's favour."

    class Options(Base, frozen=True):
        aging: Aging = 0.125
        stay: Stay = 4.0
        size: StartSize = "min"

    options: Options

    def plan(self, view: View) -> Plan:
        """Give the shortest jobs their sizes."""
        draft = Draft(view)
        draft.keep_all([job for job in draft.running if not job.preemptible])
        order = shortest_first(draft, self.options.aging, self.options.stay, self.options.size)
        seat(draft, order, size=self.options.size, keep=True)
        return draft.plan()


class ElasticSrtf(Elastic):
    """All minimums, the shortest first; then the shortest grows as long as it gets faster."""

    name = "elastic_srtf"
    summary = "Shortest remaining time first, elastic: minimums first, then the shortest grow first."

    class Options(ElasticOptions, frozen=True):
        aging: Aging = 0.125
        stay: Stay = 4.0
        theta: LeastGain = 0.1

    options: Options

    def _seat(self, draft: Draft) -> Sequence[JobView]:
        return seated(draft, shortest_first(draft, self.options.aging, self.options.stay))

    def _grow(self, draft: Draft, jobs: Sequence[JobView]) -> None:
        for job in jobs:
            if not draft.free:
                return
            speed = rates(job)
            unit = speed(job.min_slots) / job.min_slots
            climb(draft, (job,), lambda _, speed=speed: speed, floor=self.options.theta * unit)  # type: ignore[misc]
