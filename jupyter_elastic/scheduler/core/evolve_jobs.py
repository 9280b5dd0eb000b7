"""Fold events about one job into the state: its phase, its slots, its progress and its end.

Knows the job's life; must not know hosts, drains and policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from posixpath import normpath
from sys import intern
from typing import Any

from msgspec.structs import replace

from jupyter_elastic.scheduler.core.lengths import length, noted
from jupyter_elastic.scheduler.core.profile import Learned, remaining
from jupyter_elastic.scheduler.core.state import NOBODY_DIED, NOTHING_LEARNED, Job, SlotState, State
from jupyter_elastic.scheduler.core.transitions import after
from jupyter_elastic.scheduler.core.turns import TurnQueue
from jupyter_elastic.scheduler.core.used import UsedSlots
from jupyter_elastic.types import (
    ENDED,
    AnyEventData,
    Event,
    JobEnded,
    JobProgressed,
    JobRequeued,
    JobResized,
    JobRunning,
    JobSpec,
    JobStarted,
    JobSubmitted,
    RescaleRequested,
    SlotId,
    SlotsReleased,
    StopRequested,
    WorkerDied,
    WorkerReplaced,
)
from jupyter_elastic.types.texts import in_use_by


def submitted(state: State, event: Event, data: JobSubmitted) -> None:
    """Queue the new job."""
    job = Job(
        job=data.job,
        owner=data.owner,
        spec=_shared(data.spec),
        submitted_at=state.at,
        submitted_seq=event.seq,
        queued_at=state.at,
    )
    state.jobs[data.job] = job
    for row, name in job.places:
        state.rows.setdefault(row, TurnQueue()).came(name, state.at, state.shares.weights)
    take_turns(state, job, waited=False)
    state.unfinished[job.owner] = state.unfinished.get(job.owner, 0) + 1
    state.keys[event.cause] = data.job
    state.folders[normpath(data.spec.folder)] = data.job
    if data.spec.interactive:
        state.interactive.add(data.job)
    if data.spec.session:
        state.in_sessions.add(data.job)
    if data.uid is not None:
        state.ids[data.owner] = data.uid
    state.next_job = max(state.next_job, data.job + 1)


def take_turns(state: State, job: Job, *, waited: bool) -> None:
    """Update the rows of the job's owner and group after an event. `waited`: the job was queued before."""
    waits = (job.phase == "queued") - waited
    slots = state.charged(job.slots)
    for row, name in job.places:
        began = waited and job.phase == "starting"
        one = state.rows[row].moved(name, state.at, waiting=waits, held=slots - job.charged, began=began)
        if job.ended_at is not None:
            one.unfinished -= 1
            one.last_s = job.run_s
    job.charged = slots


def _shared(spec: JobSpec) -> JobSpec:
    """Return the spec with texts that many jobs have in common interned."""
    return replace(spec, **{name: intern(getattr(spec, name)) for name in ("name", "python", "notebook", "cell")})


def _started(state: State, job: Job, at: float, data: JobStarted) -> None:
    job.phase = after(job.phase, data)
    job.attempt, job.generation, job.settled = data.attempt, data.generation, 0
    job.lease_s = data.lease_s
    job.stop, job.members, job.elastic = "", (), None
    job.deaths, job.died, job.mishap = 0, {}, ""
    job.started_at = at if job.started_at is None else job.started_at
    job.accounted_at = at
    if job.learned is NOTHING_LEARNED:
        job.learned = Learned()
    job.learned.cold()
    state.active.add(job.job)
    _hold(state, job, at, data)


def _rescale_requested(state: State, job: Job, at: float, data: RescaleRequested) -> None:
    job.phase = after(job.phase, data)
    job.generation = data.generation
    state.yielded.pop(job.job, None)
    if data.yielded:
        state.yielded[job.job] = data.yielded
    _hold(state, job, at, data)


def _hold(state: State, job: Job, at: float, data: JobStarted | RescaleRequested) -> None:
    """Let the job hold exactly these slots: lease the new ones, drain the others."""
    account(state, job, at)
    wanted = set(data.slots)
    _drain(state, job, tuple(slot for slot in job.slots if slot not in wanted))
    for slot in data.slots:
        entry = state.slots.get(slot)
        if entry is not None and entry.job is None:
            entry.job, entry.draining, entry.granted = job.job, False, data.generation
    job.slots, job.servers = data.slots, data.servers
    leave(state, job)
    job.changed_at, job.reason = at, data.reason


def _drain(state: State, job: Job, slots: tuple[SlotId, ...]) -> None:
    for slot in slots:
        entry = state.slots.get(slot)
        if entry is not None:
            entry.draining = True
    job.draining += slots


def _running(_state: State, job: Job, at: float, data: JobRunning) -> None:
    job.phase = after(job.phase, data)
    job.elastic = data.elastic
    job.plain = data.elastic is False
    if (job.settled, job.members) != (data.generation, data.slots):
        job.settled, job.members = data.generation, data.slots
        start_s = 0.0 if job.changed_at is None else at - job.changed_at
        job.learned.settled(rescaled=data.generation > 1, pause_s=data.pause_s, start_s=start_s)


def _stop_requested(state: State, job: Job, at: float, data: StopRequested) -> None:
    account(state, job, at)
    job.phase = after(job.phase, data)
    _drain(state, job, job.slots)
    job.slots, job.servers, job.leaving = (), 0, False
    job.stop, job.reason = data.how, data.reason
    state.yielded.pop(job.job, None)


def _released(state: State, job: Job, at: float, data: SlotsReleased) -> None:
    account(state, job, at)
    gone = set(data.slots)
    for slot in data.slots:
        entry = state.slots.get(slot)
        if entry is not None and entry.job == job.job:
            _free(state, slot, entry)
    if gone.intersection(job.slots):
        servers = job.slots[len(job.slots) - job.servers :]
        job.servers = sum(slot not in gone for slot in servers)
        job.slots = tuple(slot for slot in job.slots if slot not in gone)
        leave(state, job)
    job.draining = tuple(slot for slot in job.draining if slot not in gone)


def _free(state: State, slot: SlotId, entry: SlotState) -> None:
    entry.job, entry.retained_by, entry.draining, entry.granted = None, None, False, 0
    if entry.foreign:  # until the hosts are looked at again, nobody else gets it
        entry.out, entry.foreign = entry.out or in_use_by(entry.foreign), ()
    if entry.gone:
        del state.slots[slot]


def _progressed(_state: State, job: Job, at: float, data: JobProgressed) -> None:
    before, progress = job.progress, data.progress
    job.progress = progress
    if before is not None and progress.training > before.training:
        job.furthest = None
    mark = next((m for m in (progress.samples, progress.step, progress.epoch) if m is not None), None)
    if mark is not None and (job.furthest is None or mark > job.furthest):
        job.furthest, job.losses = mark, 0
    if job.phase == "running":
        job.learned.add(at, progress, len(job.members) - job.servers, job.servers)


def _died(_state: State, job: Job, at: float, data: WorkerDied) -> None:
    job.deaths = data.count
    job.died[data.slot] = data.count
    job.mishap, job.mishap_at = data.text, at
    job.stays = data.text if data.empty else job.stays


def _replaced(_state: State, job: Job, _at: float, data: WorkerReplaced) -> None:
    job.died.pop(data.slot, None)
    job.mishap += f"; {data.text}"


def _requeued(state: State, job: Job, at: float, data: JobRequeued) -> None:
    account(state, job, at)
    job.phase = after(job.phase, data)
    job.queued_at = at
    job.stop, job.reason = "", data.reason
    job.members, job.stays = (), ""
    state.active.discard(job.job)
    state.yielded.pop(job.job, None)
    if data.cause == "preempted":
        job.preemptions += 1
    else:
        job.restarts += 1
        job.losses += 1


def _resized(_state: State, job: Job, _at: float, data: JobResized) -> None:
    before, job.spec = job.spec, data.applied(job.spec)
    job.stays = ""
    if (before.min_slots, before.max_slots) != (data.min_slots, data.max_slots):
        job.resized_by = data.by


def _ended(state: State, job: Job, at: float, data: JobEnded) -> None:
    account(state, job, at)
    job.phase = after(job.phase, data)
    if job.phase not in ENDED:
        return
    silent = remaining(job.progress) is None
    if job.phase == "completed" and silent and job.run_s > 0 and job.spec.name:
        seconds = length(job.attained_s, job.run_s, job.spec.min_slots)
        state.lengths = noted(state.lengths, job.owner, job.spec.name, seconds)
    job.ended_at, job.reason, job.stop = at, data.reason, ""
    _retain(state, job, data)
    job.learned, job.died = NOTHING_LEARNED, NOBODY_DIED  # policies see unfinished jobs only
    del state.jobs[job.job]
    state.ended[job.job] = job
    state.unfinished[job.owner] -= 1
    if not state.unfinished[job.owner]:
        del state.unfinished[job.owner]
    if state.folders.get(folder := normpath(job.spec.folder)) == job.job:
        del state.folders[folder]
    state.active.discard(job.job)
    state.interactive.discard(job.job)
    state.in_sessions.discard(job.job)
    _sized(state, job)
    state.yielded.pop(job.job, None)
    state.reasons.pop(job.job, None)


def _retain(state: State, job: Job, data: JobEnded) -> None:
    """Move what the session keeps from the job to the session."""
    job.retention = data.retention(state.at, job.spec.hold_s)
    if job.retention is None:
        return
    state.retaining.add(job.job)
    if job.retention.exclusive:
        for slot in job.retention.slots:
            entry = state.slots[slot]
            entry.job, entry.retained_by, entry.draining, entry.granted = None, job.job, False, 0
        job.slots, job.servers, job.draining, job.leaving = (), 0, (), False


def give_back(state: State, job: Job, slots: Iterable[SlotId] | None) -> None:
    """Free these slots that the job's session kept; None: all, which were not exclusive."""
    gone, kept = set(slots or ()), job.retention
    for slot in kept.slots if kept is not None else ():
        if slot in gone:
            _free(state, slot, state.slots[slot])
    job.retention = None if kept is None or slots is None else kept.without(gone)
    if job.retention is None:
        job.withdrawn = False
        state.retaining.discard(job.job)


def _sized(state: State, job: Job) -> None:
    """Let the session's next cells start with the number of workers that it has after this cell."""
    spec, size = job.spec, len(job.members)
    if not (spec.session and size and spec.min_slots < spec.max_slots):
        return
    for number in state.in_sessions:
        other = state.jobs[number]
        waits = other.phase == "queued" and state.same_session(number, job)
        if waits and other.spec.min_slots <= size <= other.spec.max_slots:
            other.spec = replace(other.spec, begins=size)


def account(state: State, job: Job, at: float) -> None:
    """Count the time since the last count for the job and its owner."""
    slots = state.charged(job.slots)
    if slots and at > job.accounted_at:
        users = state.used.setdefault(job.spec.group, {})
        used = users.setdefault(job.owner, UsedSlots(slot_s=0.0, at=at))
        used.add(slots, job.accounted_at, at, state.half_life_s)
    job.account(at, slots)


def leave(state: State, job: Job) -> None:
    """Note whether the job has to leave one of its slots."""
    job.leaving = any(state.slots[slot].drained for slot in job.slots if slot in state.slots)


OF_JOB: dict[type[AnyEventData], Callable[[State, Job, float, Any], None]] = {
    JobStarted: _started,
    RescaleRequested: _rescale_requested,
    JobRunning: _running,
    StopRequested: _stop_requested,
    SlotsReleased: _released,
    JobProgressed: _progressed,
    WorkerDied: _died,
    WorkerReplaced: _replaced,
    JobRequeued: _requeued,
    JobResized: _resized,
    JobEnded: _ended,
}
"""Change that each event makes to its job."""
