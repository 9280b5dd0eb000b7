"""Elastic FIFO: all minimums in order of arrival, the rest in turn, as long as a slot makes a job faster.

Source: Schedulearn's and Voda's Elastic-FIFO (Hsieh & Lee, IC2E 2023), with two corrections: a job without its minimum
never gets single slots, and a job stops growing if the next slot would speed it up by less than theta of a slot. So a
new job shrinks running jobs towards their minimum, and a completion lets the oldest grow first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated

from msgspec import Meta

from jupyter_elastic.scheduler.policies.common import Configured, Draft, LeastGain, seat
from jupyter_elastic.scheduler.policies.elastic import ElasticOptions, Guard, fill, settle
from jupyter_elastic.scheduler.policies.speed import rates
from jupyter_elastic.types import JobView, Plan, View


class ElasticFifo(Configured):
    """Minimum for all jobs in order, then the rest in turn."""

    name = "elastic_fifo"
    summary = "First come, first served; jobs shrink for newcomers and grow when others finish."
    work_conserving = True
    interval_s = 10.0

    class Options(ElasticOptions, frozen=True):
        theta: LeastGain = 0.1
        strict: Annotated[bool, Meta(description="a waiting job whose minimum doesn't fit blocks the later ones")] = (
            True
        )

    options: Options

    def plan(self, view: View) -> Plan:
        """Plan by phases A to C of the definition; placement (D) is done by the core."""
        draft = Draft(view)
        draft.pin()
        order = draft.by_priority([*draft.running, *draft.waiting])
        seat(draft, order, strict=self.options.strict)
        chosen = (job for job in order if job.job in draft.workers)
        self._fill(draft, list(islice(chosen, len(draft.workers))) if draft.free else ())
        guard = Guard(self.options, view.now)
        settle(draft, guard, lambda jobs: self._fill(draft, [job for job in jobs if self._pays(guard, job, draft)]))
        return draft.plan()

    def _fill(self, draft: Draft, jobs: Sequence[JobView]) -> None:
        speeds = {job.job: rates(job) for job in jobs}
        theta = self.options.theta

        def faster(job: JobView, workers: int, wider: int) -> bool:
            speed = speeds[job.job]
            return speed(wider) / max(speed(workers), 1e-300) - 1.0 > theta * (wider - workers) / workers

        fill(draft, jobs, faster)

    @staticmethod
    def _pays(guard: Guard, job: JobView, draft: Draft) -> bool:
        return not job.size.workers or guard.may_grow(job, draft.workers[job.job] + 1)
