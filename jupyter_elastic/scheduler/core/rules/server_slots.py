"""Limit parameter servers to slots of their own: CPUs beside GPUs, so that servers take no GPU.

Policies see jobs with servers such that no plan can give away more of these slots than there are: of jobs that would
together need too many the first are shown, each with at most as many servers as there is room for. So a policy that
knows nothing of two kinds of slots keeps to both limits.
Knows the state and the views of jobs; must not know policies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from jupyter_elastic.scheduler.core.rule import Rule
from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import JobId, JobView
from jupyter_elastic.types.texts import count


class ServerSlots(Rule):
    """Keep plans within the slots for servers alone."""

    def shows(self, state: State, jobs: list[JobView]) -> tuple[list[JobView], dict[JobId, str]]:
        """Hide jobs whose servers have no room and lower the numbers of servers of the others."""
        slots = state.server_capacity
        return (jobs, {}) if slots is None else within(jobs, slots)

    def explain(self, state: State, job: Job, now: float, *, whole: bool) -> list[str]:
        """Count the free slots for the servers of a waiting job."""
        if not (state.apart and job.spec.min_servers and job.phase == "queued"):
            return []
        idle = sum(1 for _ in state.free(for_servers=True))
        return [f"{count(idle)} of {state.server_capacity} for servers free."]


def within(jobs: Sequence[JobView], slots: int) -> tuple[list[JobView], dict[JobId, str]]:
    """Return the jobs that a policy may see, and the reasons why others are left out."""
    room, counts = slots, dict[JobId, int]()
    blocked = False
    """True once a job waits for these slots; no other job overtakes it."""
    reasons: dict[JobId, str] = {}
    unseen: set[JobId] = set()
    with_servers = [job for job in jobs if job.max_servers]
    if not with_servers:
        return list(jobs), reasons
    for job in sorted(with_servers, key=lambda job: (not job.size.workers, -job.priority)):
        if not job.size.workers and job.min_servers and (blocked or job.min_servers > room):
            unseen.add(job.job)
            reasons[job.job] = (
                "a job before it waits for slots for servers"
                if blocked
                else f"needs {count(job.min_servers)} for servers, and {max(room, 0)} of {slots} are left"
            )
            blocked = True
            continue
        counts[job.job] = max(job.min_servers, min(job.size.servers, job.max_servers))
        room -= counts[job.job]
    turn = deque(job for job in with_servers if job.job in counts)
    while turn and room > 0:
        job = turn.popleft()
        if counts[job.job] < job.max_servers:
            counts[job.job] += 1
            room -= 1
            turn.append(job)
    return [_clamped(job, counts.get(job.job)) for job in jobs if job.job not in unseen], reasons


def _clamped(job: JobView, servers: int | None) -> JobView:
    return job if servers is None else replace(job, max_servers=servers, server_cost=0)
