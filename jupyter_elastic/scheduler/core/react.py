"""Facts to orders: what the owner's agent is told to do.

Knows the books after the fact. Decides nothing: an order follows from its fact, and can be sent again at any time,
because an agent tells orders apart by (job, attempt, generation) and does each once.
"""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import (
    AnyEffect,
    AnyFact,
    JobStarted,
    Launch,
    Rescale,
    RescaleRequested,
    SlotId,
    Stop,
    StopRequested,
)


def react(state: State, facts: Iterable[AnyFact]) -> list[AnyEffect]:
    """The orders that these facts call for, in their order."""
    effects: list[AnyEffect] = []
    for fact in facts:
        if isinstance(fact, JobStarted | RescaleRequested):
            job = state.jobs[fact.job]
            kind = _launch if isinstance(fact, JobStarted) else _rescale
            effects.append(kind(state, job, fact.generation, fact.slots, fact.servers))
        elif isinstance(fact, StopRequested):
            effects.append(_stop(state.jobs[fact.job], fact))
    return effects


def outstanding(state: State, owner: str) -> list[AnyEffect]:
    """All that an agent which just (re)connected must know, whatever it missed.

    Every active attempt comes as its `Launch`: an agent that knows the attempt does nothing, or reports its exit
    again if it is over. If the attempt moved on since then, the newest `Rescale` or the `Stop` follows. The `Launch`
    then names every slot that is still held, so that a newcomer has something to release.
    """
    effects: list[AnyEffect] = []
    for job_id in sorted(state.active):
        job = state.jobs[job_id]
        if job.owner != owner:
            continue
        held = (*job.draining, *job.slots)
        moved = bool(job.draining) or job.settled != job.generation > 1
        if held:
            generation, slots = (1, held) if moved else (job.generation, job.slots)
            effects.append(_launch(state, job, generation, slots, job.servers))
        if job.phase == "stopping":
            fact = StopRequested(job=job.job, attempt=job.attempt, how=job.stop, reason=job.reason)  # type: ignore[arg-type]
            effects.append(_stop(job, fact))
        elif moved:
            effects.append(_rescale(state, job, job.generation, job.slots, job.servers))
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
    )


def _rescale(state: State, job: Job, generation: int, slots: tuple[SlotId, ...], servers: int) -> Rescale:
    return Rescale(
        job=job.job,
        attempt=job.attempt,
        owner=job.owner,
        generation=generation,
        slots=slots,
        servers=servers,
        devices=_devices(state, slots),
    )


def _stop(job: Job, fact: StopRequested) -> Stop:
    return Stop(job=job.job, attempt=fact.attempt, owner=job.owner, how=fact.how, reason=fact.reason)


def _devices(state: State, slots: tuple[SlotId, ...]) -> dict[SlotId, str]:
    return {slot: book.device for slot in slots if (book := state.slots.get(slot)) is not None and book.device}
