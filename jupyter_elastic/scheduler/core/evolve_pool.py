"""Fold events about the pool into the state: hosts, drains, policies, agents, shares and keys, and forgotten jobs.

Knows which slots there are; must not know the life of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any

from jupyter_elastic.scheduler.core.evolve_jobs import account, leave
from jupyter_elastic.scheduler.core.state import BY_KEY, SlotState, State
from jupyter_elastic.scheduler.core.used import HALF_LIFE_S
from jupyter_elastic.types import (
    AgentChanged,
    AnyEventData,
    AsksRefused,
    BooksRestored,
    DrainsChanged,
    Host,
    HostsChanged,
    JobsForgotten,
    KeyRegistered,
    KeyRevoked,
    PlanAccepted,
    PlanRejected,
    PolicyUsed,
    SharesChanged,
    SlotId,
)


def _forgotten(state: State, data: JobsForgotten) -> None:
    gone = set(data.jobs)
    state.retaining -= gone
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
        if slot_id not in present and (entry.job is not None or entry.retained_by is not None):
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
        leave(state, job)


def _policy_used(state: State, data: PolicyUsed) -> None:
    if data.source:  # other code under the same name may not understand an old memo
        state.memos.pop(data.name, None)
    asked = data.options.get("half_life_s")
    half_life_s = float(asked) if isinstance(asked, int | float) and isfinite(asked) and asked > 0 else HALF_LIFE_S
    if half_life_s != state.half_life_s:  # as with Slurm what was counted stays, and decays at the new rate
        for job in state.active_jobs():
            account(state, job, state.at)
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


OF_POOL: dict[type[AnyEventData], Callable[[State, Any], None]] = {
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
"""Change that each event about the pool makes."""
