"""Fold events into the state.

Judges nothing and can't fail: an event was permitted before it was written down, and a replayed journal is true by
definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from posixpath import normpath
from sys import intern
from typing import Any

from msgspec.structs import replace

from jupyter_elastic.scheduler.core.lengths import length, noted
from jupyter_elastic.scheduler.core.profile import Learned, remaining
from jupyter_elastic.scheduler.core.state import BY_KEY, NOBODY_DIED, NOTHING_LEARNED, Job, SlotState, State
from jupyter_elastic.scheduler.core.transitions import after
from jupyter_elastic.scheduler.core.turns import TurnQueue
from jupyter_elastic.scheduler.core.used import HALF_LIFE_S, UsedSlots
from jupyter_elastic.types import (
    ENDED,
    AgentChanged,
    AnyEventData,
    AsksRefused,
    BooksRestored,
    DrainsChanged,
    Event,
    HoldEnded,
    Host,
    HostsChanged,
    JobEnded,
    JobProgressed,
    JobRequeued,
    JobResized,
    JobRunning,
    JobsForgotten,
    JobSpec,
    JobStarted,
    JobSubmitted,
    KeyRegistered,
    KeyRevoked,
    PlanAccepted,
    PlanRejected,
    PolicyUsed,
    RescaleRequested,
    SharesChanged,
    SlotId,
    SlotsReleased,
    StopRequested,
    UnpinRequested,
    WorkerDied,
    WorkerReplaced,
)
from jupyter_elastic.types.texts import in_use_by


def evolve(state: State, event: Event) -> None:
    """Fold one event into the state."""
    state.seq = event.seq
    state.at = max(state.at, event.at)
    data = event.data
    if isinstance(data, JobSubmitted):
        _submitted(state, event, data)
        return
    pool = _POOL.get(type(data))
    if pool is not None:
        pool(state, data)
        return
    job = state.jobs.get(data.job)  # type: ignore[union-attr]
    if job is not None:
        phase, slots = job.phase, job.slots
        _JOB[type(data)](state, job, state.at, data)
        if job.phase != phase or job.slots is not slots:
            _take_turns(state, job, waited=phase == "queued")
    elif isinstance(data, SlotsReleased | UnpinRequested) and data.job in state.pinned:
        _unpin(state, state.ended[data.job], data)


# --- the life of a job ------------------------------------------------------------------------------------------------


def _submitted(state: State, event: Event, data: JobSubmitted) -> None:
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
    _take_turns(state, job, waited=False)
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


def _take_turns(state: State, job: Job, *, waited: bool) -> None:
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
    _account(state, job, at)
    wanted = set(data.slots)
    _drain(state, job, tuple(slot for slot in job.slots if slot not in wanted))
    for slot in data.slots:
        entry = state.slots.get(slot)
        if entry is not None and entry.job is None:
            entry.job, entry.draining, entry.granted = job.job, False, data.generation
    job.slots, job.servers = data.slots, data.servers
    _leave(state, job)
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
    _account(state, job, at)
    job.phase = after(job.phase, data)
    _drain(state, job, job.slots)
    job.slots, job.servers, job.leaving = (), 0, False
    job.stop, job.reason = data.how, data.reason
    state.yielded.pop(job.job, None)


def _released(state: State, job: Job, at: float, data: SlotsReleased) -> None:
    _account(state, job, at)
    gone = set(data.slots)
    for slot in data.slots:
        entry = state.slots.get(slot)
        if entry is not None and entry.job == job.job:
            _free(state, slot, entry)
    if gone.intersection(job.slots):
        servers = job.slots[len(job.slots) - job.servers :]
        job.servers = sum(slot not in gone for slot in servers)
        job.slots = tuple(slot for slot in job.slots if slot not in gone)
        _leave(state, job)
    job.draining = tuple(slot for slot in job.draining if slot not in gone)


def _free(state: State, slot: SlotId, entry: SlotState) -> None:
    entry.job, entry.pinned, entry.draining, entry.granted = None, None, False, 0
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
    _account(state, job, at)
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
    _account(state, job, at)
    job.phase = after(job.phase, data)
    if job.phase not in ENDED:
        return
    silent = remaining(job.progress) is None
    if job.phase == "completed" and silent and job.run_s > 0 and job.spec.name:
        seconds = length(job.attained_s, job.run_s, job.spec.min_slots)
        state.lengths = noted(state.lengths, job.owner, job.spec.name, seconds)
    job.ended_at, job.reason, job.stop = at, data.reason, ""
    if data.held:
        job.held, job.held_until = data.held, at + job.spec.hold_s
        state.held.add(job.job)
    _pin(state, job, data)
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


def _pin(state: State, job: Job, data: JobEnded) -> None:
    """Move the slots that the session retains from the job to the session."""
    if not data.pinned:
        return
    for slot in data.pinned:
        entry = state.slots[slot]
        entry.job, entry.pinned, entry.draining, entry.granted = None, job.job, False, 0
    job.slots, job.servers, job.draining, job.leaving = (), 0, (), False
    job.pinned, job.pinned_why, job.pinned_until = data.pinned, data.pinned_why, state.at + data.pinned_s
    state.pinned.add(job.job)


def _unpin(state: State, job: Job, data: SlotsReleased | UnpinRequested) -> None:
    """Note that the session was asked to end, or free the slots that it gave back."""
    if isinstance(data, UnpinRequested):
        job.unpinning = True
        return
    gone = set(data.slots)
    for slot in job.pinned:
        if slot in gone:
            _free(state, slot, state.slots[slot])
    job.pinned = tuple(slot for slot in job.pinned if slot not in gone)
    if not job.pinned:
        job.pinned_why, job.pinned_until, job.unpinning = "", None, False
        state.pinned.discard(job.job)


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


def _account(state: State, job: Job, at: float) -> None:
    """Count the time since the last count for the job and its owner."""
    slots = state.charged(job.slots)
    if slots and at > job.accounted_at:
        users = state.used.setdefault(job.spec.group, {})
        used = users.setdefault(job.owner, UsedSlots(slot_s=0.0, at=at))
        used.add(slots, job.accounted_at, at, state.half_life_s)
    job.account(at, slots)


def _hold_ended(state: State, data: HoldEnded) -> None:
    state.held.discard(data.job)
    job = state.ended.get(data.job)
    if job is not None:
        job.held, job.held_until = 0, None


def _forgotten(state: State, data: JobsForgotten) -> None:
    gone = set(data.jobs)
    state.held -= gone
    for job in gone:
        state.ended.pop(job, None)
    state.keys = {key: job for key, job in state.keys.items() if job not in gone}
    owners = {job.owner for jobs in (state.jobs, state.ended) for job in jobs.values()}
    for group, users in list(state.used.items()):
        state.used[group] = {name: one for name, one in users.items() if one.now(state.at, state.half_life_s) >= 1.0}
    for row in state.rows.values():
        row.forget(state.at)
    state.ids = {owner: uid for owner, uid in state.ids.items() if owner in owners}
    state.lengths = {owner: names for owner, names in state.lengths.items() if owner in owners}


# --- the pool ---------------------------------------------------------------------------------------------------------


def _hosts_changed(state: State, data: HostsChanged) -> None:
    state.hosts = data.hosts
    closed = {user for host in data.hosts for user in host.unreachable}
    if any(host.local_users for host in data.hosts):
        closed.add(BY_KEY)
    state.reached = {user: sum(map(_usable, _reached_by(user, data.hosts))) for user in closed}
    state.apart = any(slot.for_servers for host in data.hosts for slot in host.slots)
    present: dict[SlotId, SlotState] = {}
    for host in data.hosts:
        for slot in host.slots:
            slot_id = host.slot_id(slot.index)
            entry = state.slots.get(slot_id) or SlotState(host=host.name, index=slot.index)
            entry.device, entry.out, entry.foreign, entry.gone = slot.device, slot.out, slot.processes, False
            entry.for_servers = slot.for_servers
            present[slot_id] = entry
    for slot_id, entry in state.slots.items():
        if slot_id not in present and (entry.job is not None or entry.pinned is not None):
            entry.out, entry.gone = "host lost", True
            present[slot_id] = entry
    state.slots = present
    _mark_drained(state)


def _reached_by(user: str, hosts: Iterable[Host]) -> list[Host]:
    """Return the hosts that a user (`BY_KEY`: any user who connected by a key) can reach."""
    return [host for host in hosts if not (host.local_users if user == BY_KEY else user in host.unreachable)]


def _usable(host: Host) -> int:
    return sum(not (slot.out or slot.for_servers) for slot in host.slots)


def _drains_changed(state: State, data: DrainsChanged) -> None:
    state.drains = data.drains
    _mark_drained(state)


def _mark_drained(state: State) -> None:
    for slot_id, entry in state.slots.items():
        entry.drained = any(drain.covers(entry.host, slot_id) for drain in state.drains)
    for job in state.active_jobs():
        _leave(state, job)


def _leave(state: State, job: Job) -> None:
    job.leaving = any(state.slots[slot].drained for slot in job.slots if slot in state.slots)


def _policy_used(state: State, data: PolicyUsed) -> None:
    if data.source:  # other code under the same name may not understand an old memo
        state.memos.pop(data.name, None)
    asked = data.options.get("half_life_s")
    half_life_s = float(asked) if isinstance(asked, int | float) and isfinite(asked) and asked > 0 else HALF_LIFE_S
    if half_life_s != state.half_life_s:  # as with Slurm what was counted stays, and decays at the new rate
        for job in state.active_jobs():
            _account(state, job, state.at)
        for used in (one for users in state.used.values() for one in users.values()):
            used.add(0, state.at, state.at, state.half_life_s)
        state.half_life_s = half_life_s
    state.policy, state.policy_options, state.policy_source = data.name, data.options, data.source
    state.rejections = 0
    state.reasons, state.turn = {}, ()


def _plan_rejected(state: State, _data: PlanRejected) -> None:
    state.rejections += 1


def _plan_accepted(state: State, data: PlanAccepted) -> None:
    state.rejections = 0
    state.memos[data.policy] = data.memo
    state.reasons = {int(job): reason for job, reason in data.reasons.items()}
    state.turn = data.turn


def _agent_changed(state: State, data: AgentChanged) -> None:
    state.agents[data.user] = data.connected
    if data.place is not None:
        state.places[data.user] = data.place


def _shares_changed(state: State, data: SharesChanged) -> None:
    state.shares = data


def _key_registered(state: State, data: KeyRegistered) -> None:
    state.registered[data.key] = data


def _key_revoked(state: State, data: KeyRevoked) -> None:
    state.registered.pop(data.key, None)


def _books_restored(state: State, data: BooksRestored) -> None:
    state.next_job = max(state.next_job, data.next_job)
    for number, attempt in data.attempts.items():
        job = state.jobs.get(int(number))
        if job is not None:
            job.attempt = max(job.attempt, attempt)


_POOL: dict[type[AnyEventData], Callable[[State, Any], None]] = {
    HoldEnded: _hold_ended,
    JobsForgotten: _forgotten,
    HostsChanged: _hosts_changed,
    DrainsChanged: _drains_changed,
    PolicyUsed: _policy_used,
    PlanRejected: _plan_rejected,
    PlanAccepted: _plan_accepted,
    AgentChanged: _agent_changed,
    SharesChanged: _shares_changed,
    BooksRestored: _books_restored,
    AsksRefused: lambda _state, _data: None,  # for people
    KeyRegistered: _key_registered,
    KeyRevoked: _key_revoked,
}
_JOB: dict[type[AnyEventData], Callable[[State, Job, float, Any], None]] = {
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
