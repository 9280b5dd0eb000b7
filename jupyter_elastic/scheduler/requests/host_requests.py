"""Answer requests about hosts and slots: list them, drain them, and note those that a user can't reach.

Knows rights and drains; must not know jobs.
"""

from __future__ import annotations

from msgspec.structs import replace

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.journal.state_store import Context
from jupyter_elastic.scheduler.requests.answering import REASON_CHARS, Answer, DaemonApi, answer
from jupyter_elastic.scheduler.slots.slot_sources import kept_from
from jupyter_elastic.types import DrainSlots, HostsReported, UndrainSlots, other_machines
from jupyter_elastic.types.errors import BadRequest
from jupyter_elastic.types.texts import visible

LONGEST_GRACE_S = 30 * 86_400.0


@answer.register
def _drain(ask: wire.BeginDrain, api: DaemonApi, context: Context) -> Answer:
    api.rights.drain(context.peer.caller)
    if ask.grace_s is not None and not 0 <= ask.grace_s <= LONGEST_GRACE_S:
        raise BadRequest(f"a grace is a number of seconds from 0 to {LONGEST_GRACE_S:,.0f}; without one jobs run on")
    stamp = api.store.stamp(context.peer.user)
    reason = ask.reason[:REASON_CHARS]
    api.store.command(DrainSlots(**stamp, target=ask.target, reason=reason, grace_s=ask.grace_s))
    return wire.Done()


@answer.register
def _undrain(ask: wire.Undrain, api: DaemonApi, context: Context) -> Answer:
    api.rights.drain(context.peer.caller)
    api.store.command(UndrainSlots(**api.store.stamp(context.peer.user), target=ask.target))
    return wire.Done()


@answer.register
def _list_hosts(_ask: wire.ListHosts, api: DaemonApi, context: Context) -> Answer:
    state = api.store.core.state
    others = other_machines(state.hosts, context.peer.user)
    kind = "gpu" if any(host.kind == "gpu" for host in state.hosts) else "cpu"
    slots = api.visibility.slots(context.peer.caller, api.store.core.slots())
    return wire.Hosts(slots=slots, kind=kind, seq=state.seq, drains=state.drains, others=others)


@answer.register
def _report_failed_hosts(ask: wire.ReportFailedHosts, api: DaemonApi, context: Context) -> Answer:
    api.agents.check_agent(context.peer)
    known = {host.name for host in api.store.core.state.hosts if host.url}
    failed = {name: replace(one, why=visible(one.why)[:300]) for name, one in ask.hosts.items() if name in known}
    api.agents.failed_hosts[context.peer.user] = failed
    # At once: an attempt that such a host cost is over in a moment, and the next one must not begin there.
    hosts = kept_from(api.store.core.state.hosts, api.agents.failed_hosts)
    api.store.observe(HostsReported(**api.store.stamp(), hosts=hosts))
    return wire.Done()
