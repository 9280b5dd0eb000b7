"""First in, first out: the textbook rule, without rescaling and without preemption.

Source: Schedulearn's FIFO and Voda's (first fit); EASY backfill after Lifka, "The ANL/IBM SP scheduling system" (JSSPP
1995). A blocked head blocks the rest, unless backfilling lets later jobs pass; with `easy` only those that can't delay
the head by the estimates, and one that exceeds its estimate is preempted when the head could start in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from jupyter_elastic.scheduler.policies.common import Base, Configured, Draft, StartSize, seat, sized, slots
from jupyter_elastic.scheduler.policies.speed import run_time, time_left
from jupyter_elastic.types import JobView, Plan, View


class Fifo(Configured):
    """Jobs start in the order in which they came."""

    name = "fifo"
    summary = "First come, first served; nobody is rescaled or preempted."
    interval_s = None

    class Options(Base, frozen=True):
        backfill: Annotated[
            Literal["none", "first_fit", "easy"],
            Meta(description="who may pass a blocked head: whoever fits (first_fit), or can't delay it (easy)"),
        ] = "none"
        size: StartSize = "min"

    options: Options

    def plan(self, view: View) -> Plan:
        """Keep running jobs; start the queue in order."""
        draft = Draft(view)
        draft.keep_all()
        queue = draft.by_priority(draft.waiting)
        head = seat(draft, queue, size=self.options.size, strict=True)
        if head is not None and self.options.backfill != "none":
            self._pass(draft, head, queue[queue.index(head) + 1 :])
        return draft.plan()

    def _pass(self, draft: Draft, head: JobView, later: Sequence[JobView]) -> None:
        """Let later jobs pass, as the option allows."""
        if self.options.backfill == "first_fit":
            reason = draft.reasons[head.job]
            seat(draft, later, size=self.options.size)
            draft.reasons = {head.job: reason}
        elif not self._reclaim(draft, head):
            self._easy(draft, head, later)

    def _reclaim(self, draft: Draft, head: JobView) -> bool:
        """Preempt backfilled jobs that exceed their estimate, the youngest first, if that lets the head start."""
        need = slots(head, sized(head, self.options.size)) - draft.free
        overdue = []
        for job in reversed(draft.running):
            behind = (-job.priority, job.submitted_at, job.job) > (-head.priority, head.submitted_at, head.job)
            if behind and job.preemptible and job.job in draft.workers and time_left(job, job.size.workers) == 0:
                overdue.append(job)
                need -= draft.cost(job)
                if need <= 0:
                    break
        if need > 0:
            return False
        for job in overdue:
            draft.give(job, 0)
        return draft.give(head, sized(head, self.options.size)) and draft.reasons.pop(head.job, None) is not None

    def _easy(self, draft: Draft, head: JobView, later: Sequence[JobView]) -> None:
        """Reserve for the head the moment at which enough slots come back; others may use the slots that it leaves."""
        need = slots(head, sized(head, self.options.size)) - draft.free
        shadow, extra = float("inf"), 0
        ends = sorted(
            (time_left(job, draft.workers[number]), draft.cost(job), number) for number, job in draft.jobs.items()
        )
        for end, released, _ in ends:
            need -= released
            if need <= 0:
                shadow, extra = end, -need
                break
        if shadow == float("inf"):
            return  # nobody knows when the head can start, so nobody can be shown not to delay it
        for job in later:
            if not draft.free:
                return
            workers = sized(job, self.options.size)
            if not workers:
                continue
            cost = slots(job, workers)
            if run_time(job, workers) <= shadow:
                draft.give(job, workers)
            elif cost <= extra and draft.give(job, workers):
                extra -= cost
