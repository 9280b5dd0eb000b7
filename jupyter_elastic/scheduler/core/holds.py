"""Keep slots for a session for a while after a cell: its next cell starts at once, and no job grows and shrinks.

Such slots are free in every other respect: a waiting job gets them at once, only running jobs can't grow into them.
They are kept by number: in a pool of several hosts the slots left may be another host's. Knows the state alone; the end
of a hold is an event, so that a replay sees the same.
"""

from __future__ import annotations

from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import AnyEventData, HoldEnded, JobEnded


def after(job: Job, end: AnyEventData) -> int:
    """Return how many slots the session of a job that ends so keeps: those it ran on, unless it was cancelled."""
    ended = isinstance(end, JobEnded) and end.outcome != "cancelled" and not end.pinned
    return len(job.members) if ended and job.spec.session and job.spec.hold_s else 0


def over(state: State, at: float) -> list[AnyEventData]:
    """Return the ends of holds that are due: all if a job that plans can serve waits, else those whose time is over."""
    if not state.held:
        return []
    waits = next((job for job in state.jobs.values() if job.phase == "queued" and not state.ignored(job)), None)
    why = "" if waits is None else f"job {waits.job} waits for slots"
    return [
        HoldEnded(job=number, reason=why)
        for number in sorted(state.held)
        if why or at >= (state.ended[number].held_until or 0.0)
    ]


def held(state: State) -> int:
    """Count the free slots that sessions keep."""
    kept = sum(state.ended[number].held for number in state.held)
    return min(kept, sum(1 for _ in state.free())) if kept else 0
