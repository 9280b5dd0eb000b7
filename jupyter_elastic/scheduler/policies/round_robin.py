"""Round robin: rotation over hosts as in Schedulearn, or time slices.

Sources: Schedulearn (placement rotation; here the job waits where the original failed it) and Gandiva (OSDI 2018, time
slices). With `placement` the head of the queue starts when a host, tried in turn from a pointer kept in the memo, has
room for all of it; the core decides on which host. With `timeslice` jobs form a ring: a job that ran for a quantum goes
to the tail if another waits. A job that was passed over three times gets a reservation: nothing else starts until it
fits.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Any, Literal

from msgspec import Meta

from jupyter_elastic.scheduler.policies.common import Base, Configured, Draft, StartSize, sized, slots
from jupyter_elastic.types import JobId, JobView, Plan, View

COSTS = 10.0
"""Minimum of a quantum, in multiples of the job's measured rescale cost."""
REMEMBERED = 200


class RoundRobin(Configured):
    """All jobs in turn."""

    name = "round_robin"
    summary = "Everybody in turn: time slices over the jobs, or rotation over the hosts."
    interval_s = 10.0

    class Options(Base, frozen=True):
        mode: Annotated[
            Literal["timeslice", "placement"],
            Meta(description="turns in time (timeslice), or over the hosts (placement)"),
        ] = "timeslice"
        quantum_s: Annotated[float, Meta(ge=1, le=1e6, description="seconds of a time slice while others wait")] = 600.0
        passes: Annotated[int, Meta(ge=1, le=1000, description="passed over so often, a job gets a reservation")] = 3
        size: StartSize = "min"

    options: Options

    def plan(self, view: View) -> Plan:
        """Plan one turn."""
        draft = Draft(view)
        draft.keep_all()
        memo = view.memo if isinstance(view.memo, dict) else {}
        if self.options.mode == "placement":
            return self._rotate(draft, memo)
        return self._slice(draft, memo)

    def _rotate(self, draft: Draft, memo: dict[str, Any]) -> Plan:
        """Start the queue in order, each job if the pointed host, or the next one with room, can take it whole."""
        hosts = draft.view.hosts
        room = [host.free for host in hosts]
        largest = max((host.capacity for host in hosts), default=0)
        pointer = int(memo.get("pointer", 0)) % max(1, len(hosts))
        for job in draft.by_priority(draft.waiting):
            workers = sized(job, self.options.size)
            need = slots(job, workers)
            if not workers or need > draft.capacity:
                draft.blocked(job, workers)
                continue
            turns = ((pointer + ahead) % len(hosts) for ahead in range(len(hosts)))
            chosen = next((at for at in turns if room[at] >= need), None)
            if (chosen is None and need <= largest) or not draft.give(job, workers):
                draft.blocked(job, workers)
                break
            if chosen is not None:
                room[chosen] -= need
                pointer = (chosen + 1) % len(hosts)
        return draft.plan(memo={"pointer": pointer})

    def _slice(self, draft: Draft, memo: dict[str, Any]) -> Plan:
        """Walk the ring: the job that waited longest starts, on free slots or on those of jobs whose slice is over."""
        now = draft.view.now
        passed: dict[str, int] = memo.get("passed", {})
        waiting = {str(job.job) for job in draft.waiting} if passed else set()
        counts = {number: count for number, count in passed.items() if number in waiting}
        over = [job for job in draft.running if job.preemptible and self._age(job, now) >= self._quantum(job)]
        over.sort(key=lambda job: (self._age(job, now), -job.submitted_at, -job.job))
        spare = sum(draft.cost(job) for job in over)
        ring = draft.by_priority(sorted(draft.waiting, key=attrgetter("queued_at")))
        skipped: list[JobId] = []
        for job in ring:
            if not draft.free and not spare:
                break
            workers = sized(job, self.options.size)
            need = slots(job, workers)
            if not workers or need > draft.capacity:
                continue
            if need <= draft.free + spare:
                while draft.free < need:
                    yielding = over.pop()
                    spare -= draft.cost(yielding)
                    draft.give(yielding, 0)
                draft.give(job, workers)
                counts.pop(str(job.job), None)
                for other in skipped:
                    counts[str(other)] = passed.get(str(other), 0) + 1
            elif passed.get(str(job.job), 0) >= self.options.passes:
                draft.blocked(job, workers)
                break  # reserved: what is freed from now on waits for this job
            elif len(skipped) < REMEMBERED:
                skipped.append(job.job)
        return draft.plan(memo={"passed": counts} if counts else None)

    def _age(self, job: JobView, now: float) -> float:
        return now - (now if job.changed_at is None else job.changed_at) if job.phase == "running" else 0.0

    def _quantum(self, job: JobView) -> float:
        return max(self.options.quantum_s, COSTS * job.profile.rescale_cost_s)
