"""Answer what peers send by themselves: greetings, heartbeats, reports and leases of agents, the end of the daemon.

Knows roles, versions and agents; must not know commands about jobs.
"""

from __future__ import annotations

import os

from msgspec.structs import replace

from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.shares import SESSIONS
from jupyter_elastic.scheduler.core.decide_commands import found
from jupyter_elastic.scheduler.journal.state_store import Context
from jupyter_elastic.scheduler.requests.answering import Answer, DaemonApi, answer, check_texts
from jupyter_elastic.types import MAX_METRICS, ProgressReported
from jupyter_elastic.types.errors import BadRequest, ProtocolError
from jupyter_elastic.types.texts import has_control


@answer.register
def _hello(ask: wire.Hello, api: DaemonApi, context: Context) -> Answer:
    if ask.version != wire.VERSION:
        raise ProtocolError(
            f"you speak protocol {ask.version}, this daemon (jupyter-elastic {__version__}) {wire.VERSION}: "
            "install the same version on both sides, then restart the daemon"
        )
    if ask.place is not None:
        check_texts("the agent's place", ask.place)
    if ask.role == "agent":
        api.agents.greet(context.peer, ask)
    elif ask.role != "client":
        raise BadRequest(f"there is no role {ask.role[:50]!r}; there are agent and client")
    state = api.store.core.state
    return wire.Welcome(
        version=wire.VERSION,
        package=__version__,
        user=context.peer.user,
        pool=api.pool,
        seq=state.seq,
        policy=state.policy,
        started_at=api.started_at,
        pid=os.getpid(),
        administers=api.rights.is_admin(context.peer.caller),
        log_format=api.settings.log_format,
        shared=not api.settings.personal,
    )


@answer.register
def _ping(_ask: wire.Ping, _api: DaemonApi, _context: Context) -> Answer:
    return wire.Done()


@answer.register
def _report(ask: wire.ReportArrived, api: DaemonApi, context: Context) -> Answer:
    """Stamp a report with our user and time: another clock's time in the state would stop it for ever."""
    report = ask.report
    api.rights.report(context.peer.user, found(api.store.core.state, report.job).owner, report.job)
    api.agents.check_agent(context.peer)
    if isinstance(report, ProgressReported) and len(report.progress.metrics) > MAX_METRICS:
        raise BadRequest(f"a report may hold {MAX_METRICS} metrics at most")
    if isinstance(report, ProgressReported) and any(map(has_control, report.progress.metrics)):
        raise BadRequest("the name of a metric holds control characters; give it another one")
    stimulus = replace(report, **api.store.stamp(context.peer.user))
    return wire.Done() if api.store.report(stimulus, context) else None


@answer.register
def _renew_leases(ask: wire.RenewLeases, api: DaemonApi, context: Context) -> Answer:
    held = api.agents.renew(context.peer, ask.attempts)
    terms = api.shares.terms_of(context.peer.user, context.peer.groups)
    limited = {"sessions": terms.max_sessions or SESSIONS, "parked_mb": terms.parked_mb or 0}
    return wire.LeasesRenewed(
        held=held,
        lease_s=api.settings.lease_s,
        warm=api.settings.warm,
        **(limited if api.settings.lease_s else {}),
    )


@answer.register
def _shutdown(_ask: wire.Shutdown, api: DaemonApi, context: Context) -> Answer:
    api.rights.shut_down(context.peer.caller)
    api.stop()
    return wire.Done()
