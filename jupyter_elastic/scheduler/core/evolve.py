"""Fold events into the state.

Judges nothing and can't fail: an event was permitted before it was written down, and a replayed journal is true by
definition. Knows which events are about a job; must not know what an event changes: that is in the modules beside.
"""

from __future__ import annotations

from jupyter_elastic.scheduler.core.evolve_jobs import OF_JOB, give_back, submitted, take_turns
from jupyter_elastic.scheduler.core.evolve_pool import OF_POOL
from jupyter_elastic.scheduler.core.state import State
from jupyter_elastic.types import Event, HoldEnded, JobSubmitted, SlotsReleased, UnpinRequested


def evolve(state: State, event: Event) -> None:
    """Fold one event into the state."""
    state.seq = event.seq
    state.at = max(state.at, event.at)
    data = event.data
    if isinstance(data, JobSubmitted):
        submitted(state, event, data)
        return
    pool = OF_POOL.get(type(data))
    if pool is not None:
        pool(state, data)
        return
    job = state.jobs.get(data.job)  # type: ignore[union-attr]
    if job is not None:
        phase, slots = job.phase, job.slots
        OF_JOB[type(data)](state, job, state.at, data)
        if job.phase != phase or job.slots is not slots:
            take_turns(state, job, waited=phase == "queued")
    elif data.job in state.retaining:  # type: ignore[union-attr]
        ended = state.ended[data.job]  # type: ignore[union-attr]
        if isinstance(data, UnpinRequested):
            ended.withdrawn = True
        elif isinstance(data, SlotsReleased | HoldEnded):
            give_back(state, ended, None if isinstance(data, HoldEnded) else data.slots)
