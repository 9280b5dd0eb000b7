"""Slots that a session keeps for a while after a cell: the next one begins at once, and nobody grows and shrinks.

They are free in every other respect, and whoever waits for slots gets them at once; only jobs that run and could grow
do without. They are kept by number: where a pool has several hosts, it may be another host's that are left. Knows the
state alone: that a hold is over is an event, so that a replay sees the same.
"""

from __future__ import annotations

from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import AnyEventData, HoldEnded, JobEnded


def after(job: Job, end: AnyEventData) -> int:
    """How many slots the session of a job that ends so keeps: what it ran on, unless it was cancelled."""
    ended = isinstance(end, JobEnded) and end.outcome != "cancelled" and not end.pinned
    return len(job.members) if ended and job.spec.session and job.spec.hold_s else 0


def over(state: State, at: float) -> list[AnyEventData]:
    """The holds that end now: all of them as soon as a job waits that plans have a say about, else by their time."""
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
    """Free slots that sessions keep."""
    kept = sum(state.ended[number].held for number in state.held)
    return min(kept, sum(1 for _ in state.free())) if kept else 0
