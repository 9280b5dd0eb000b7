"""The invariants of the state of the core, as code: run after every step of a history.

Knows what must be true at any time, and nothing of how it came to be: it counts everything anew from both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import isfinite

from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import ACTIVE, ENDED, Event, JobStarted, RescaleRequested, SlotsReleased


class InvariantBroken(AssertionError):
    """The state contradicts itself: a bug of the core. The message names the entry."""


def check(state: State) -> None:
    """InvariantBroken if the state is wrong."""
    _check_index(state)
    for job in state.jobs.values():
        _check_job(job)
    for job in state.ended.values():
        _that(job.phase in ENDED, f"job {job.job} is kept with the ended ones but {job.phase}")
        _that(not job.slots and not job.draining, f"job {job.job} has ended and still holds slots")
        _that(job.ended_at is not None, f"job {job.job} has ended but not when")
    kept = {job.job for job in state.ended.values() if job.retention is not None}
    _that(state.retaining == kept, f"{sorted(kept)} keep slots, not {sorted(state.retaining)}")
    counts = [(one.count, len(one.slots)) for job in state.ended.values() if (one := job.retention) is not None]
    _that(all(count == slots or (count and not slots) for count, slots in counts), f"slots kept: {counts}")
    _check_slots(state)


def _that(truth: bool, text: str) -> None:
    if not truth:
        raise InvariantBroken(text)


def _check_index(state: State) -> None:
    _that(not state.jobs.keys() & state.ended.keys(), "a job is both ended and not")
    _that(
        list(state.jobs.values()) == sorted(state.jobs.values(), key=lambda job: job.key), "the jobs are not in order"
    )
    active = {job.job for job in state.jobs.values() if job.phase != "queued"}
    _that(state.active == active, f"the active jobs are {sorted(active)}, not {sorted(state.active)}")
    interactive = {job.job for job in state.jobs.values() if job.spec.interactive}
    _that(state.interactive == interactive, f"the interactive jobs are {sorted(interactive)}")
    _that(state.yielded.keys() <= active, "a job that holds nothing is to get slots back")
    known = state.jobs.keys() | state.ended.keys()
    _that(set(state.keys.values()) == known, "a job has no submit key, or a key no job")
    _that(all(job < state.next_job for job in known), "the next job's number is used already")
    _that(state.reasons.keys() <= known, "there is a reason for a job that does not exist")
    _that(state.rejections >= 0, "plans were refused a negative number of times")


def _check_job(job: Job) -> None:
    name = f"job {job.job} ({job.phase})"
    held = (*job.slots, *job.draining)
    _that(job.phase not in ENDED, f"{name} is over but kept with the unfinished ones")
    _that(len(set(held)) == len(held), f"{name} holds a slot twice: {held}")
    _that(set(job.members) <= set(held) or job.phase != "running", f"{name} runs on slots that it does not hold")
    if job.phase == "queued":
        _that(not held, f"{name} holds {held}")
    if job.phase in ACTIVE:
        _that(job.attempt >= 1 and job.generation >= 1, f"{name} has no attempt or generation")
        _that(job.started_at is not None, f"{name} was never started")
    if job.phase == "stopping":
        _that(not job.slots and bool(job.stop), f"{name} has leases or no reason to stop")
    elif job.phase in ACTIVE:
        _that(bool(job.slots), f"{name} runs on nothing")
        _that(0 <= job.servers < len(job.slots), f"{name} has {job.servers} servers of {len(job.slots)} slots")
        _that(not job.stop, f"{name} is being stopped")
    _that((job.phase == "starting") <= (job.settled == 0), f"{name} has settled")
    _that((job.phase == "running") <= (job.settled == job.generation), f"{name} has not settled")
    _that((job.phase == "rescaling") <= (0 < job.settled < job.generation), f"{name} has nothing to settle")
    numbers = (job.attained_s, job.run_s, float(job.losses), float(job.preemptions), float(job.restarts))
    _that(all(isfinite(number) and number >= 0 for number in numbers), f"{name} has counted {numbers}")


def _check_slots(state: State) -> None:
    for job in state.jobs.values():
        _that(job.leaving == any(state.slots[slot].drained for slot in job.slots), f"job {job.job} is to leave or not")
    present = {host.slot_id(slot.index) for host in state.hosts for slot in host.slots}
    _that(present <= state.slots.keys(), "a slot of a host has no entry")
    leased = Counter(slot for job in state.jobs.values() for slot in job.slots)
    draining = Counter(slot for job in state.jobs.values() for slot in job.draining)
    for job in state.jobs.values():
        workers = job.slots[: len(job.slots) - job.servers]
        _that(not any(state.slots[slot].for_servers for slot in workers), f"job {job.job} has a worker on a server's")
    twice = [slot for slot, count in (leased + draining).items() if count > 1]
    _that(not twice, f"leased twice: {twice}")
    owners = {slot: job.job for job in state.jobs.values() for slot in (*job.slots, *job.draining)}
    _that(owners.keys() <= state.slots.keys(), "a job holds a slot that does not exist")
    found = [(slot, job.job) for job in state.ended.values() if job.retention for slot in job.retention.slots]
    kept = dict(found)
    _that(len(kept) == len(found), "a slot is kept twice")
    for slot_id, entry in state.slots.items():
        _that(entry.job == owners.get(slot_id), f"{slot_id} says job {entry.job}, the jobs say {owners.get(slot_id)}")
        _that(entry.draining == (slot_id in draining), f"{slot_id} drains in one entry only")
        _that(entry.gone == (slot_id not in present), f"{slot_id} is gone in one entry only")
        held = entry.job is not None or entry.retained_by is not None
        _that(not entry.gone or (held and bool(entry.out)), f"{slot_id} is gone and not given up")
        _that(entry.retained_by == kept.get(slot_id), f"{slot_id} is kept by job {entry.retained_by} in one entry only")
        _that(entry.job is None or entry.retained_by is None, f"{slot_id} is leased and kept")
        _that(not (entry.out and slot_id in leased), f"{slot_id} is out ({entry.out}) but leased and not draining")
        covered = any(drain.covers(entry.host, slot_id) for drain in state.drains)
        _that(entry.drained == covered, f"{slot_id} is drained in one entry only")
        _that(entry.job is not None or entry.granted == 0, f"{slot_id} is free but granted")


def no_slot_is_leased_twice(events: Iterable[Event]) -> None:
    """Fold the leases of a whole story: a slot has one attempt at a time."""
    held: dict[str, tuple[int, int]] = {}
    for event in events:
        data = event.data
        if isinstance(data, JobStarted | RescaleRequested):
            for slot in data.slots:
                other = held.setdefault(slot, (data.job, data.attempt))
                _that(other == (data.job, data.attempt), f"{slot} is leased twice: {event}")
        elif isinstance(data, SlotsReleased):
            for slot in data.slots:
                if held.get(slot) == (data.job, data.attempt):
                    del held[slot]
