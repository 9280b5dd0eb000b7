"""Reserve slots for interactive jobs that wait: no policy sees these slots.

Knows the state alone, so that a later call gives the same answer.
"""

from __future__ import annotations

from typing import NamedTuple

from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import JobId


class Reserved(NamedTuple):
    """A reservation: a number of slots, and the waiting interactive jobs that it is for."""

    slots: int
    """Number of reserved slots among those that are free or will be soon."""
    jobs: frozenset[JobId]


_NOTHING = Reserved(0, frozenset())


def reserved(state: State) -> Reserved:
    """Return the slots, free or being given back, that are reserved for waiting interactive jobs."""
    found = waiting(state)
    if not found:
        return _NOTHING
    have, kept, jobs = room(state), 0, []
    for job in found:
        need = state.needs(job.spec)
        if kept + need <= have:
            kept += need
            jobs.append(job.job)
    return Reserved(kept, frozenset(jobs))


def waiting(state: State) -> list[Job]:
    """Return the interactive jobs that could start, the first one first."""
    jobs = (state.jobs[job] for job in sorted(state.interactive))
    found = [job for job in jobs if job.phase == "queued" and not state.ignored(job)]
    if state.apart and any(job.spec.min_servers for job in found):  # nobody gives a server up for another's
        idle = sum(1 for _ in state.free(for_servers=True))
        return [job for job in found if job.spec.min_servers <= idle]
    return found


def room(state: State) -> int:
    """Count the slots that are free or will be soon."""
    return sum(1 for _ in state.free()) + sum(state.coming(job, job.draining) for job in state.active_jobs())
