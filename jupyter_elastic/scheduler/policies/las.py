"""Serves jobs by least attained service, in two queues: Tiresias without predictions.

Source: Gu et al., "Tiresias" (NSDI 2019); the option `promote` is Voda's. A job that has received less than
`threshold_s` slot-seconds is in the first queue, any other in the second; within a queue jobs are served in order of
arrival. A job that doesn't fit is skipped; a job further back is preempted for one further in front. A job of the
second queue that waits `promote` times as long as it has run since its last promotion is promoted: it starts over in
the first queue, so an endless stream of short jobs starves no job.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from jupyter_elastic.scheduler.policies.common import Base, Configured, Draft, Ratio, StartSize, seat
from jupyter_elastic.types import JobView, Plan, View

REMEMBERED = 1000
"""Maximum number of promoted jobs in the memo; of more, those submitted first are kept."""


class Las(Configured):
    """Short jobs overtake long ones without estimates of their lengths."""

    name = "las"
    summary = "Least attained service first (Tiresias): short jobs overtake long ones, with preemption."

    class Options(Base, frozen=True):
        threshold_s: Annotated[
            float, Meta(ge=0, le=1e9, description="slot-seconds after which a job moves to the second queue")
        ] = 3600.0
        promote: Annotated[
            Ratio, Meta(description="back to the first queue after waiting this many times its run time; 0: never")
        ] = 8.0
        size: StartSize = "min"

    options: Options

    def plan(self, view: View) -> Plan:
        """Plan the first queue, then the second, each in order of arrival."""
        draft = Draft(view)
        draft.keep_all([job for job in draft.running if not job.preemptible])
        limit = self.options.threshold_s
        alive = [job for job in view.jobs if job.phase != "stopping"] if draft.running else draft.waiting
        tall = [job for job in alive if job.attained_s >= limit]
        forgiven = self._promoted(view, tall)
        if forgiven:
            tall = [job for job in tall if job.attained_s - forgiven.get(str(job.job), 0.0) >= limit]
        second = {job.job for job in tall}
        first = [job for job in alive if job.job not in second] if second else alive
        seat(draft, draft.by_priority(first + tall), size=self.options.size, keep=True)
        return draft.plan(memo={"forgiven": forgiven} if forgiven else None)

    def _promoted(self, view: View, tall: list[JobView]) -> dict[str, float]:
        """Return the service, in slot-seconds, that no longer counts for each promoted job: all before its promotion.

        `tall`: the jobs that would be in the second queue if no job were promoted.
        """
        before = view.memo.get("forgiven", {}) if isinstance(view.memo, dict) else {}
        knob = self.options.promote
        forgiven: dict[str, float] = {}
        for job in tall:
            known = before.get(str(job.job))
            if knob and self._waited_long(job, view.now, knob, known or 0.0):
                known = job.attained_s
            if known is not None and len(forgiven) < REMEMBERED:
                forgiven[str(job.job)] = known
        return forgiven

    def _waited_long(self, job: JobView, now: float, knob: float, forgiven: float) -> bool:
        served = job.attained_s - forgiven
        if job.phase != "queued" or served < self.options.threshold_s:
            return False
        return now - job.queued_at >= knob * served / max(1.0, job.attained_s / max(job.run_s, 1.0))
