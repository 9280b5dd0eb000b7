"""Turn events into orders for the owner's agent.

Knows the state after the event. Decides nothing: an order follows from its event, and can be sent again at any time,
because an agent identifies orders by (job, attempt, generation) and does each once.
"""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import (
    AnyEffect,
    AnyEventData,
    JobEnded,
    JobStarted,
    Launch,
    Rescale,
    RescaleRequested,
    SlotId,
    Stop,
    StopRequested,
    UnpinRequested,
    WatchRetention,
)


def react(state: State, events: Iterable[AnyEventData]) -> list[AnyEffect]:
    """Return the orders that these events call for, in their order."""
    effects: list[AnyEffect] = []
    for data in events:
        if isinstance(data, JobStarted):
            effects.append(_launch(state, state.jobs[data.job], data.generation, data.slots, data.servers))
        elif isinstance(data, RescaleRequested):
            effects.append(_rescale(state, state.jobs[data.job]))
        elif isinstance(data, StopRequested):
            effects.append(_stop(state.jobs[data.job]))
        elif isinstance(data, JobEnded):
            # Unless the session's next cell has them already.
            effects += [_watch(job) for job in state.retained(exclusive=True) if job.job == data.job]
        elif isinstance(data, UnpinRequested):
            effects.append(_end_session(state.ended[data.job], data.reason))
    return effects


def outstanding(state: State, owner: str) -> list[AnyEffect]:
    """Return all orders that an agent which just (re)connected needs, whatever it missed.

    Every active attempt comes as its `Launch`: an agent that knows the attempt does nothing, or reports its exit again
    if it is over. Then follows the newest `Rescale` if it was not seen to settle or to release everything, or the
    `Stop`. The `Launch` is then the first generation, which the agent may or may not have seen, on today's slots.
    """
    effects: list[AnyEffect] = []
    for job in state.active_jobs():
        if job.owner != owner:
            continue
        moved = job.generation > 1 and (bool(job.draining) or job.settled != job.generation)
        if job.phase == "stopping":
            if job.draining:
                effects.append(_launch(state, job, 1, job.draining, 0))
            effects.append(_stop(job))
            continue
        effects.append(_launch(state, job, 1 if moved else job.generation, job.slots, job.servers))
        if moved:
            effects.append(_rescale(state, job))
    for job in state.retained(exclusive=True):
        if job.owner == owner:
            effects.append(_watch(job))
            if job.withdrawn:
                effects.append(_end_session(job, "its slots are wanted back"))
    return effects


def _launch(state: State, job: Job, generation: int, slots: tuple[SlotId, ...], servers: int) -> Launch:
    return Launch(
        job=job.job,
        attempt=job.attempt,
        owner=job.owner,
        spec=job.spec,
        generation=generation,
        slots=slots,
        servers=servers,
        devices=_devices(state, slots),
        remote_hosts=_remote_hosts(state, slots),
        lease_s=job.lease_s,
    )


def _rescale(state: State, job: Job) -> Rescale:
    return Rescale(
        job=job.job,
        attempt=job.attempt,
        owner=job.owner,
        generation=job.generation,
        slots=job.slots,
        servers=job.servers,
        devices=_devices(state, job.slots),
        remote_hosts=_remote_hosts(state, job.slots),
        draining=job.draining,
    )


def _stop(job: Job) -> Stop:
    assert job.stop, f"job {job.job} is not being stopped"
    return Stop(job=job.job, attempt=job.attempt, owner=job.owner, how=job.stop, reason=job.reason)


def _watch(job: Job) -> WatchRetention:
    assert job.retention is not None
    return WatchRetention(
        job=job.job,
        attempt=job.attempt,
        owner=job.owner,
        session=job.spec.session,
        slots=job.retention.slots,
        until=job.retention.until,
    )


def _end_session(job: Job, reason: str) -> Stop:
    return Stop(job=job.job, attempt=job.attempt, owner=job.owner, how="cancel", reason=reason)


def _remote_hosts(state: State, slots: tuple[SlotId, ...]) -> tuple[str, ...]:
    on = {entry.host for slot in slots if (entry := state.slots.get(slot)) is not None}
    return tuple(host.name for host in state.hosts if host.url and host.name in on)


def _devices(state: State, slots: tuple[SlotId, ...]) -> dict[SlotId, str]:
    return {slot: entry.device for slot in slots if (entry := state.slots.get(slot)) is not None and entry.device}
