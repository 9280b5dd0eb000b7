"""Drain slots for an administrator: they take no new work, and the jobs on them leave.

A job that can regroup or goes on from a commit leaves at once; a job that would lose its work has the grace that the
administrator gives. Maintenance is the drain of the whole pool. Knows the state; must not know policies: they see a job
on drained slots as not preemptible and leave it there, until this module makes it leave.
"""

from __future__ import annotations

from math import inf

from jupyter_elastic.scheduler.core import plan
from jupyter_elastic.scheduler.core.rule import DAEMON, Rule, Rules
from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import (
    AnyEventData,
    Drain,
    DrainsChanged,
    DrainSlots,
    HostsReported,
    RescaleRequested,
    Stimulus,
    Tick,
    UndrainSlots,
)
from jupyter_elastic.types.errors import BadRequest, NotFound
from jupyter_elastic.types.texts import span

LEAVE_S, LAST_S = 120.0, 30.0
"""Seconds before a host's end: at `LEAVE_S` the jobs leave that can go on or resume, at `LAST_S` the others are
stopped and queued again."""


class Drains(Rule):
    """Drain hosts whose end is near, and let jobs leave drained slots."""

    def after(self, state: State, stimulus: Stimulus, rules: Rules) -> list[AnyEventData]:
        """Return the events by which jobs leave drained slots, and those that drain hosts whose end is near.

        Jobs leave at a `Tick` only; hosts are drained also when they have been reported.
        """
        if not isinstance(stimulus, HostsReported | Tick):
            return []
        jobs = state.active_jobs() if isinstance(stimulus, Tick) else []
        leaves = [leave(state, job) for job in jobs if stimulus.at >= leaves_at(state, job)]
        return leaves + _ending(state, stimulus.at)

    def explain(self, state: State, job: Job, now: float, *, whole: bool) -> list[str]:
        """Tell when a job leaves drained slots."""
        if not job.leaving:
            return []
        when = leaves_at(state, job)
        then = "it may run there to its end" if when == inf else f"it is stopped and queued again in {span(when - now)}"
        return [f"{_text(state, job)}: {then}."]

    def wakes_at(self, state: State) -> float:
        """Return the time at which the next job leaves or the next host is drained because its end is near."""
        drained = {one.target for one in state.drains}
        near = (host.until - LEAVE_S for host in state.hosts if host.until is not None and host.name not in drained)
        return min((*near, *(leaves_at(state, job) for job in state.active_jobs())), default=inf)


def drain(state: State, command: DrainSlots) -> list[AnyEventData]:
    """Drain a host, a slot or the pool, or change a drain's reason and grace. NotFound if there is no such slot."""
    target = command.target
    if target and target not in state.slots and target not in {host.name for host in state.hosts}:
        raise NotFound(f"the pool has no host or slot {target[:300]!r}; `jupyter elastic host slots` lists them")
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
    """End the drain whose target has exactly this name. BadRequest if there is none."""
    target = command.target
    others = tuple(one for one in state.drains if one.target != target)
    if len(others) < len(state.drains):
        return [DrainsChanged(target=target, drained=False, drains=others)]
    if not target:
        raise BadRequest("the pool is not in maintenance")
    found = ", ".join(one.target or "the whole pool (`jupyter elastic pool maintenance off`)" for one in others)
    raise BadRequest(f"{target} is not drained under that name; drained are: {found or 'none'}")


def _ending(state: State, now: float) -> list[AnyEventData]:
    """Drain hosts that end soon, so that jobs leave them in time, and undrain those whose end is no longer near."""
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


def leaves_at(state: State, job: Job) -> float:
    """Return the time at which the job leaves drained slots, in seconds since the epoch: 0 for now, infinity for never.

    A job that can shrink, or is elastic and preemptible, leaves now; any other when the first grace of its drains ends.
    """
    if not job.leaving:
        return inf
    if not job.rigid:
        can_shrink = isinstance(leave(state, job), RescaleRequested)
        if can_shrink or job.spec.preemptible:
            return 0.0
    return min((one.due_at for one in _drains(state, job) if one.due_at is not None), default=inf)


def leave(state: State, job: Job) -> AnyEventData:
    """Return the event by which the job leaves its drained slots: a shrink if it can regroup, else a preemption."""
    lost = [slot for slot in job.slots if state.slots[slot].drained]
    return plan.without(state, job, lost, _text(state, job))


def _text(state: State, job: Job) -> str:
    """Describe the drains of the job's slots for people."""
    found = _drains(state, job)
    return "; ".join(f"{one.target} is {one.text}" if one.target else one.text for one in found)


def _drains(state: State, job: Job) -> list[Drain]:
    """Return the drains that cover any of the job's slots."""
    return [one for one in state.drains if any(one.covers(state.slots[slot].host, slot) for slot in job.slots)]
