"""Slots that an administrator drains: they take nothing new, and what runs on them leaves.

A job that can regroup, or goes on from a commit, leaves at once; one that would lose what it has done has the grace
that the administrator gives. Maintenance is the drain of the whole pool. Knows the state; must not know policies, which
leave a job on drained slots what it has.
"""

from __future__ import annotations

from math import inf

from jupyter_elastic.scheduler.core import placement, plan
from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import (
    AnyEventData,
    Drain,
    DrainsChanged,
    DrainSlots,
    RescaleRequested,
    SlotId,
    StopRequested,
    UndrainSlots,
)
from jupyter_elastic.types.errors import BadRequest, NotFound

DAEMON = "daemon"
"""Who drains what nobody has asked for."""
LEAVE_S, LAST_S = 120.0, 30.0
"""So long before a host's end jobs leave it that can; and so long before the others are stopped and queued again."""


def drain(state: State, command: DrainSlots) -> list[AnyEventData]:
    """Drain a host, a slot or the pool, or change reason and grace of a drain. NotFound where there is no such slot."""
    target = command.target
    if target and target not in state.slots and target not in {host.name for host in state.hosts}:
        raise NotFound(f"the pool has no host or slot {target[:300]!r}; `jupyter elastic hosts` lists them")
    new = Drain(
        target=target,
        reason=plan.plain(command.reason),
        by=plan.plain(command.by),
        at=command.at,
        due_at=None if command.grace_s is None else command.at + command.grace_s,
    )
    others = tuple(one for one in state.drains if one.target != target)
    return [DrainsChanged(target=target, drained=True, drains=(*others, new))]


def undrain(state: State, command: UndrainSlots) -> list[AnyEventData]:
    """End the drain of this name. BadRequest where there is none."""
    target = command.target
    others = tuple(one for one in state.drains if one.target != target)
    if len(others) < len(state.drains):
        return [DrainsChanged(target=target, drained=False, drains=others)]
    if not target:
        raise BadRequest("the pool is not in maintenance")
    found = ", ".join(one.target or "the whole pool (`jupyter elastic maintenance off`)" for one in others)
    raise BadRequest(f"{target} is not drained under that name; drained are: {found or 'none'}")


def ending(state: State, now: float) -> list[AnyEventData]:
    """Hosts that are to end soon are drained, so that jobs leave them before; the drains of those that went end."""
    soon = {host.name: host.until for host in state.hosts if host.until is not None and now >= host.until - LEAVE_S}
    drained = {one.target for one in state.drains}
    events: list[AnyEventData] = []
    left = state.drains
    for one in state.drains:
        if one.by == DAEMON and one.target not in soon:
            left = tuple(other for other in left if other is not one)
            events.append(DrainsChanged(target=one.target, drained=False, drains=left))
    for name, until in soon.items():
        if name not in drained:
            due_at = max(until - LAST_S, now)
            left = (*left, Drain(target=name, reason="its time is nearly over", by=DAEMON, at=now, due_at=due_at))
            events.append(DrainsChanged(target=name, drained=True, drains=left))
    return events


def next_ending(state: State) -> float:
    """When the next host is to be drained for its end; infinity: none."""
    drained = {one.target for one in state.drains}
    return min(
        (host.until - LEAVE_S for host in state.hosts if host.until is not None and host.name not in drained),
        default=inf,
    )


def leaves_at(state: State, job: Job) -> float:
    """When the job leaves drained slots: 0 now, infinity never."""
    if not job.leaving:
        return inf
    if not job.rigid:
        can_shrink = isinstance(leave(state, job), RescaleRequested)
        if can_shrink or job.spec.preemptible:
            return 0.0
    return min((one.due_at for one in _drains(state, job) if one.due_at is not None), default=inf)


def leave(state: State, job: Job) -> AnyEventData:
    """The job leaves the drained slots that it holds."""
    lost = [slot for slot in job.slots if state.slots[slot].drained]
    return without(state, job, lost, text(state, job))


def text(state: State, job: Job) -> str:
    """What drains the job's slots, for people."""
    found = _drains(state, job)
    return "; ".join(f"{one.target} is {one.text}" if one.target else one.text for one in found)


def without(state: State, job: Job, lost: list[SlotId], reason: str) -> AnyEventData:
    """The job goes on without the lost slots if it can regroup, else it is queued again."""
    workers, servers = (tuple(slot for slot in part if slot not in lost) for part in plan.split(job))
    size = job.largest(len(workers)) if len(servers) >= job.spec.min_servers else 0
    if size and not job.rigid and job.phase in {"running", "rescaling"}:
        kept = placement.keep(workers, state.hosts_of(workers), size)
        return plan.rescale(job, (*kept, *servers), len(servers), reason)
    return StopRequested(job=job.job, attempt=job.attempt, how="preempt", reason=reason)


def _drains(state: State, job: Job) -> list[Drain]:
    """The drains of slots that the job is to run on."""
    return [one for one in state.drains if any(one.covers(state.slots[slot].host, slot) for slot in job.slots)]
