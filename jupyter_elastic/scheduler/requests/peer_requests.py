"""Answer what peers send by themselves: greetings, heartbeats, reports and leases of agents, the end of the daemon.

Knows roles, versions and agents; must not know commands about jobs.
"""

from __future__ import annotations

import os

from msgspec.structs import replace

from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.access.shares import SESSIONS, SharesFile
from jupyter_elastic.scheduler.agents import Agents
from jupyter_elastic.scheduler.core.decide_commands import found
from jupyter_elastic.scheduler.journal.state_store import Context, StateStore
from jupyter_elastic.scheduler.requests.answering import Answer, Service, answers, check_texts
from jupyter_elastic.scheduler.settings import Settings
from jupyter_elastic.types import MAX_METRICS, ProgressReported
from jupyter_elastic.types.errors import BadRequest, ProtocolError
from jupyter_elastic.types.texts import has_control


@answers
def _hello(
    ask: wire.Hello,
    context: Context,
    agents: Agents,
    store: StateStore,
    service: Service,
    rights: Rights,
    settings: Settings,
) -> Answer:
    if ask.version != wire.VERSION:
        raise ProtocolError(
            f"you speak protocol {ask.version}, this daemon (jupyter-elastic {__version__}) {wire.VERSION}: "
            "install the same version on both sides, then restart the daemon"
        )
    if ask.place is not None:
        check_texts("the agent's place", ask.place)
    if ask.role == "agent":
        agents.greet(context.peer, ask)
    elif ask.role != "client":
        raise BadRequest(f"there is no role {ask.role[:50]!r}; there are agent and client")
    state = store.core.state
    return wire.Welcome(
        version=wire.VERSION,
        package=__version__,
        user=context.peer.user,
        pool=service.folder,
        seq=state.seq,
        policy=state.policy,
        started_at=service.started_at,
        pid=os.getpid(),
        administers=rights.is_admin(context.peer.caller),
        log_format=settings.log_format,
        shared=not settings.personal,
    )


@answers
def _ping(_ask: wire.Ping) -> Answer:
    return wire.Done()


@answers
def _report(ask: wire.ReportArrived, context: Context, rights: Rights, store: StateStore, agents: Agents) -> Answer:
    """Stamp a report with our user and time: another clock's time in the state would stop it for ever."""
    report = ask.report
    rights.report(context.peer.user, found(store.core.state, report.job).owner, report.job)
    agents.check_agent(context.peer)
    if isinstance(report, ProgressReported) and len(report.progress.metrics) > MAX_METRICS:
        raise BadRequest(f"a report may hold {MAX_METRICS} metrics at most")
    if isinstance(report, ProgressReported) and any(map(has_control, report.progress.metrics)):
        raise BadRequest("the name of a metric holds control characters; give it another one")
    stimulus = replace(report, **store.stamp(context.peer.user))
    return wire.Done() if store.report(stimulus, context) else None


@answers
def _renew_leases(
    ask: wire.RenewLeases, context: Context, agents: Agents, shares: SharesFile, settings: Settings
) -> Answer:
    held = agents.renew(context.peer, ask.attempts)
    terms = shares.shares.terms_of(context.peer.user, context.peer.groups)
    limited = {"sessions": terms.max_sessions or SESSIONS, "parked_mb": terms.parked_mb or 0}
    return wire.LeasesRenewed(
        held=held,
        lease_s=settings.lease_s,
        warm=settings.warm,
        **(limited if settings.lease_s else {}),
    )


@answers
def _shutdown(_ask: wire.Shutdown, context: Context, rights: Rights, service: Service) -> Answer:
    rights.shut_down(context.peer.caller)
    service.stop()
    return wire.Done()
