"""Answer requests about hosts and slots: list them, drain them, and note those that a user can't reach.

Knows rights and drains; must not know jobs.
"""

from __future__ import annotations

from msgspec.structs import replace

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.access.visibility import Visibility
from jupyter_elastic.scheduler.agents import Agents
from jupyter_elastic.scheduler.journal.state_store import Context, StateStore
from jupyter_elastic.scheduler.requests.answering import REASON_CHARS, Answer, answers
from jupyter_elastic.scheduler.slots.slot_sources import kept_from
from jupyter_elastic.types import DrainSlots, HostsReported, UndrainSlots, other_machines
from jupyter_elastic.types.errors import BadRequest
from jupyter_elastic.types.texts import visible

LONGEST_GRACE_S = 30 * 86_400.0


@answers
def _drain(ask: wire.BeginDrain, context: Context, rights: Rights, store: StateStore) -> Answer:
    rights.drain(context.peer.caller)
    if ask.grace_s is not None and not 0 <= ask.grace_s <= LONGEST_GRACE_S:
        raise BadRequest(f"a grace is a number of seconds from 0 to {LONGEST_GRACE_S:,.0f}; without one jobs run on")
    stamp = store.stamp(context.peer.user)
    reason = ask.reason[:REASON_CHARS]
    store.command(DrainSlots(**stamp, target=ask.target, reason=reason, grace_s=ask.grace_s))
    return wire.Done()


@answers
def _undrain(ask: wire.Undrain, context: Context, rights: Rights, store: StateStore) -> Answer:
    rights.drain(context.peer.caller)
    store.command(UndrainSlots(**store.stamp(context.peer.user), target=ask.target))
    return wire.Done()


@answers
def _list_hosts(_ask: wire.ListHosts, context: Context, store: StateStore, visibility: Visibility) -> Answer:
    state = store.core.state
    others = other_machines(state.hosts, context.peer.user)
    kind = "gpu" if any(host.kind == "gpu" for host in state.hosts) else "cpu"
    slots = visibility.slots(context.peer.caller, store.core.slots())
    return wire.Hosts(slots=slots, kind=kind, seq=state.seq, drains=state.drains, others=others)


@answers
def _report_failed_hosts(ask: wire.ReportFailedHosts, context: Context, agents: Agents, store: StateStore) -> Answer:
    agents.check_agent(context.peer)
    known = {host.name for host in store.core.state.hosts if host.url}
    failed = {name: replace(one, why=visible(one.why)[:300]) for name, one in ask.hosts.items() if name in known}
    agents.failed_hosts[context.peer.user] = failed
    # At once: an attempt that such a host cost is over in a moment, and the next one must not begin there.
    hosts = kept_from(store.core.state.hosts, agents.failed_hosts)
    store.observe(HostsReported(**store.stamp(), hosts=hosts))
    return wire.Done()
