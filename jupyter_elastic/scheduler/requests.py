"""Answer requests of peers: check them, turn commands into stimuli, and read the core's state for the rest.

Knows requests, rights and the core; must not know sockets, threads or the disk: the daemon carries stimuli out and
makes them durable.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Awaitable, Generator, Iterator
from functools import singledispatch
from posixpath import normpath
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, replace

from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.access.shares import SESSIONS, Shares, Terms
from jupyter_elastic.scheduler.access.visibility import Visibility
from jupyter_elastic.scheduler.agents import Agents
from jupyter_elastic.scheduler.core import suitable
from jupyter_elastic.scheduler.core.decide import found
from jupyter_elastic.scheduler.core.explain import count, policy_reason
from jupyter_elastic.scheduler.core.state import State
from jupyter_elastic.scheduler.journal.audit_query import AuditQuery
from jupyter_elastic.scheduler.journal.history_query import HistoryQuery
from jupyter_elastic.scheduler.journal.state_store import Context, StateStore
from jupyter_elastic.scheduler.journal.usage_query import UsageQuery
from jupyter_elastic.scheduler.net.event_streams import Subscriptions
from jupyter_elastic.scheduler.net.rate_limits import Limits, ask_admins
from jupyter_elastic.scheduler.net.transport import Peer
from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.scheduler.settings import Settings
from jupyter_elastic.scheduler.slots.slot_sources import kept_from
from jupyter_elastic.types import (
    MAX_METRICS,
    AdmitKey,
    Cancel,
    DrainSlots,
    Event,
    HostsReported,
    JobSpec,
    ProgressReported,
    Resize,
    Submit,
    UndrainSlots,
    UsePolicy,
    WithdrawKey,
    other_machines,
)
from jupyter_elastic.types.errors import BadRequest, ElasticError, NotAllowed, NotFound, ProtocolError, TooMuch
from jupyter_elastic.types.texts import has_control, visible

log = logging.getLogger(__name__)

KEY_CHARS = 200
REASON_CHARS = 1_000
VIEW_JOBS = 2000
OPTION_BYTES = 16 * 1024
SIZES = 1_000
CANCELLED_AT_ONCE = 50
"""Jobs of one request that are cancelled before other requests are answered."""
SPEC_BYTES = 16 * 1024
LONGEST_GRACE_S = 30 * 86_400.0
SERVICE = "service:"
"""Prefix of a Hub service's name in the pool: a user of the same name is another user."""


LongAnswer: TypeAlias = Generator[None, None, wire.AnyAnswer]
"""Answer built in parts, with other requests answered in between; the state is read before the first pause."""
Answer: TypeAlias = wire.AnyAnswer | LongAnswer | None
"""Answer to a request; None: it is sent later."""


class DaemonApi(Protocol):
    """Parts of the daemon that requests use."""

    settings: Settings
    store: StateStore
    agents: Agents
    subscriptions: Subscriptions
    rights: Rights
    visibility: Visibility
    shares: Shares
    limits: Limits
    usage: UsageQuery
    audit: AuditQuery
    past: HistoryQuery
    pool: str
    endpoints: list[str]
    started_at: float

    def switch_policy(self, stimulus: UsePolicy, context: Context) -> None:
        """Switch the policy if it can be made, and send the answer then."""
        ...

    async def demand(self, at_most: int) -> wire.AnyAnswer:
        """Compute how many more slots the policy would give away."""
        ...

    def answer_later(self, answer: Awaitable[wire.AnyAnswer], context: Context) -> None:
        """Send the answer when it is ready."""
        ...

    def metrics(self) -> wire.Metrics:
        """Return all figures of this daemon."""
        ...

    def stop(self) -> None:
        """End the daemon after this answer."""
        ...


@singledispatch
def answer(ask: wire.Ask, api: DaemonApi, context: Context) -> Answer:
    """Answer a request; raises an ElasticError if it is refused."""
    raise NotImplementedError


def refusal(problem: Exception, context: Context, ask: wire.Ask | None = None) -> wire.Refused:
    """Return the answer to a request that raised `problem`; other errors than ElasticError are ours, and logged."""
    if isinstance(problem, ElasticError):
        return wire.Refused(code=problem.code, message=str(problem))
    about = {"user": context.peer.user, "job": getattr(ask, "job", None)}
    log.error("an ask of %s could not be answered: %.200r", context.peer.user, ask, exc_info=problem, extra=about)
    return wire.Refused(code="error", message="an error in the daemon; its log has the details")


@answer.register
def _hello(ask: wire.Hello, api: DaemonApi, context: Context) -> Answer:
    if ask.version != wire.VERSION:
        raise ProtocolError(
            f"you speak protocol {ask.version}, this daemon (jupyter-elastic {__version__}) {wire.VERSION}: "
            "install the same version on both sides, then restart the daemon"
        )
    if ask.place is not None:
        _check_texts("the agent's place", ask.place)
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
def _submit(ask: wire.SubmitJob, api: DaemonApi, context: Context) -> Answer:
    if not 1 <= len(ask.key) <= KEY_CHARS:
        raise BadRequest(f"a submit key has 1 to {KEY_CHARS} characters; a fresh uuid is one")
    _check_spec(ask.spec)
    _check_texts("the job", ask.spec)
    store, peer, user = api.store, context.peer, context.peer.user
    api.rights.submit(peer.caller)
    job = store.core.state.keys.get(ask.key)
    if job is None or store.core.state.owner_of(job) != user:  # the core says what is wrong with another's key
        terms = api.shares.terms_of(user, peer.groups)
        _check_number_of_jobs(api, peer, terms)
        api.rights.ask_for(peer.caller, ask.spec, terms)
        group = api.shares.group_of(user, peer.groups)  # nobody says himself which one is his
        api.rights.hold(store.core.state.needs(ask.spec), api.shares.most.of(user, group))
        limit = ask.spec.max_time_s
        if ask.spec.interactive:
            limit = api.rights.wait_for(peer.caller, limit, terms)
            _check_number_of_interactive_jobs(api, peer, terms)
        if ask.spec.session:
            _check_number_of_sessions(api, peer, ask.spec.session, terms)
            if api.settings.lease_s:
                _check_devices_of_session(store.core.state, ask.spec)
        limit = api.rights.run_for(peer.caller, limit, terms, session=bool(ask.spec.session))
        spec = replace(ask.spec, group=group, max_time_s=limit)
        if (other := store.core.state.folders.get(normpath(spec.folder))) is not None:
            raise BadRequest(
                f"the folder {spec.folder} is that of job {other}, which is not over: give each job a folder of its own"
            )
        api.agents.expect(user)
        store.command(Submit(at=store.now(), by=user, id=ask.key, spec=spec, uid=context.peer.uid))
        job = store.core.state.keys.get(ask.key)
    if job is None:
        raise BadRequest("the job was not accepted; submit it with a new key")
    return wire.Submitted(job=job)


def _check_number_of_jobs(api: DaemonApi, peer: Peer, terms: Terms) -> None:
    user, said = peer.user, terms.max_jobs
    has, most = api.store.core.state.unfinished.get(user, 0), api.limits.unfinished if said is None else said
    if has >= most and not api.rights.is_admin(peer.caller):
        by = "--max-jobs" if said is None else "`max_jobs` in the file of shares"
        raise TooMuch(
            f"{user} has {has:,} unfinished jobs, and may have no more on this pool ({by}); "
            f"submit again when some have ended, or cancel some; {ask_admins(api.rights.admins)}"
        )


def _check_number_of_interactive_jobs(api: DaemonApi, peer: Peer, terms: Terms) -> None:
    user, state, most = peer.user, api.store.core.state, terms.interactive_jobs or 1
    mine = sorted(job for job in state.interactive if state.jobs[job].owner == user)
    if len(mine) >= most and not api.rights.is_admin(peer.caller):
        raise TooMuch(
            f"{user} has {count(len(mine), 'interactive job')} ({', '.join(map(str, mine))}), and may have no more at "
            "a time (`interactive_jobs` in the file of shares): wait for the end of one, cancel it, or leave "
            f"--interactive out; {ask_admins(api.rights.admins)}"
        )


def _check_number_of_sessions(api: DaemonApi, peer: Peer, session: str, terms: Terms) -> None:
    """Count sessions with unfinished cells; the user's agent counts suspended ones."""
    user, state, most = peer.user, api.store.core.state, terms.max_sessions or SESSIONS
    cells = (state.jobs[job] for job in state.in_sessions)
    names = sorted({cell.spec.session for cell in cells if cell.owner == user} - {session})
    if len(names) >= most and not api.rights.is_admin(peer.caller):
        raise TooMuch(
            f"cells of {user} wait or run in {count(len(names), 'session')} ({', '.join(names)}), and {user} may have "
            "no more at a time (`max_sessions` in the file of shares): wait for their end, or cancel them; "
            f"{ask_admins(api.rights.admins)}"
        )


def _check_devices_of_session(state: State, spec: JobSpec) -> None:
    """NotAllowed where a session's cell could get GPUs only, which its driver would refuse after all the waiting."""
    at = state.bound_to(spec)
    hosts = [host for host in state.hosts if at in {"", host.name} and suitable.matches(host.labels, spec)]
    slots = [slot for host in hosts for slot in host.slots if not slot.for_servers]
    if slots and all(slot.device for slot in slots):
        raise NotAllowed(
            "sessions are not for the GPUs of a shared pool so far, and this cell could get no other slots: "
            "run it without --session"
        )


def _check_spec(spec: JobSpec) -> None:
    if not spec.folder.startswith("/") or "\0" in spec.folder:
        raise BadRequest(f"the job's folder must be an absolute path, not {spec.folder[:200]!r}")
    _check_sizes(spec.sizes)
    length = len(msgspec.msgpack.encode(spec))
    if length > SPEC_BYTES:
        raise BadRequest(f"this job's spec takes {length:,} bytes, {SPEC_BYTES:,} are allowed; shorten its paths")


def _check_texts(whose: str, texts: msgspec.Struct) -> None:
    """Refuse texts for other users' terminals that contain control characters."""
    for name in texts.__struct_fields__:
        text = getattr(texts, name)
        if isinstance(text, str) and has_control(text):
            raise BadRequest(f"{whose} has a {name} with control characters, {text[:100]!r}; leave them out")


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts in a value as msgpack holds them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _check_sizes(sizes: tuple[int, ...]) -> None:
    if len(sizes) > SIZES:
        raise BadRequest(f"a job may name {SIZES} sizes at most; leave them out to allow all")


@answer.register
def _cancel(ask: wire.CancelJob, api: DaemonApi, context: Context) -> Answer:
    api.rights.change_job(context.peer.caller, found(api.store.core.state, ask.job).owner, ask.job)
    reason = ask.reason[:REASON_CHARS]
    api.store.command(Cancel(**api.store.stamp(context.peer.user), job=ask.job, reason=reason))
    return wire.Done()


@answer.register
def _cancel_many(ask: wire.CancelJobs, api: DaemonApi, context: Context) -> LongAnswer:
    state = api.store.core.state
    theirs = [number for number, job in state.jobs.items() if job.owner == ask.owner]
    jobs = tuple(dict.fromkeys([*ask.jobs, *theirs]))
    for job in jobs:
        api.rights.change_job(context.peer.caller, found(state, job).owner, job)
    for number, job in enumerate(jobs, 1):
        with contextlib.suppress(NotFound):  # forgotten meanwhile
            stamp = api.store.stamp(context.peer.user)
            api.store.command(Cancel(**stamp, job=job, reason=ask.reason[:REASON_CHARS]))
        if not number % CANCELLED_AT_ONCE:
            yield
    yield
    return wire.Cancelled(jobs=jobs)


@answer.register
def _release(ask: wire.ReleaseJob, api: DaemonApi, context: Context) -> Answer:
    api.rights.release_job(context.peer.caller, ask.job)
    job, reason = found(api.store.core.state, ask.job), ask.reason[:REASON_CHARS]
    api.agents.release(job, context.peer.user, reason, force=ask.force)
    return wire.Done()


@answer.register
def _resize(ask: wire.ResizeJob, api: DaemonApi, context: Context) -> Answer:
    job = found(api.store.core.state, ask.job)
    api.rights.change_job(context.peer.caller, job.owner, ask.job)
    if ask.preemptible is False:
        spec = replace(job.spec, preemptible=False)
        terms = api.shares.terms_of(context.peer.user, context.peer.groups)
        api.rights.ask_for(context.peer.caller, spec, terms)
    numbers = [number for number in (ask.min_slots, ask.max_slots) if number is not UNSET]
    if ask.sizes is not UNSET:
        _check_sizes(ask.sizes)
        numbers += ask.sizes
    if any(not 1 <= number <= 100_000 for number in numbers):
        raise BadRequest("a job can hold 1 to 100000 slots; write min:max with 1 <= min <= max")
    least = 0 if ask.min_slots is UNSET else ask.min_slots
    smallest = 0 if ask.sizes is UNSET else min(ask.sizes, default=0)
    api.rights.hold(max(least, smallest), api.shares.most.of(job.owner, job.spec.group))
    api.store.command(Resize(**api.store.stamp(context.peer.user), **asdict(ask)))
    return wire.Done()


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
def _list_jobs(ask: wire.ListJobs, api: DaemonApi, context: Context) -> LongAnswer:
    limit = min(max(ask.limit, 1), 3_000)  # what surely fits into a frame
    infos = api.store.core.jobs(all=ask.all, job=ask.job, limit=limit, owner=ask.owner)
    caller, state = context.peer.caller, api.store.core.state
    seq = state.seq
    # A policy's word may be one of a moment later: whoever follows the events gets it again.
    shown = yield from api.visibility.jobs(caller, infos, lambda job: policy_reason(state, job))
    while len(shown) > 1 and len(msgspec.msgpack.encode(shown)) > wire.MAX_FRAME - 1024:
        shown = shown[len(shown) // 2 :]
    yield
    if api.rights.sees_all(caller):  # what others may not see says no folder either
        shown = tuple(
            info if info.owner == context.peer.user else replace(info, uid=state.ids.get(info.owner, -1))
            for info in shown
        )
    return wire.Jobs(jobs=shown, seq=seq)


@answer.register
def _list_hosts(_ask: wire.ListHosts, api: DaemonApi, context: Context) -> Answer:
    state = api.store.core.state
    others = other_machines(state.hosts, context.peer.user)
    kind = "gpu" if any(host.kind == "gpu" for host in state.hosts) else "cpu"
    slots = api.visibility.slots(context.peer.caller, api.store.core.slots())
    return wire.Hosts(slots=slots, kind=kind, seq=state.seq, drains=state.drains, others=others)


@answer.register
def _list_policies(_ask: wire.ListPolicies, api: DaemonApi, context: Context) -> Answer:
    state, refusal = api.store.core.state, ""
    try:
        api.rights.switch_policy(context.peer.caller, source=False)
    except NotAllowed as problem:
        refusal = str(problem)
    return wire.Policies(policies=plugins.policy_infos(state.policy, state.policy_options), refusal=refusal)


@answer.register
def _read_view(_ask: wire.ReadView, api: DaemonApi, context: Context) -> LongAnswer:
    """Return the policy's view; a what-if of more jobs than this nobody reads, and the view must fit into a frame."""
    state, view = api.store.core.state, api.store.core.view(api.store.now())
    policy, options = state.policy, state.policy_options
    near = yield from api.visibility.view(context.peer.caller, replace(view, jobs=view.jobs[:VIEW_JOBS]))
    return wire.PoolView(view=near, policy=policy, options=options)


@answer.register
def _read_demand(ask: wire.ReadDemand, api: DaemonApi, context: Context) -> Answer:
    api.answer_later(api.demand(ask.at_most), context)
    return None


@answer.register
def _switch_policy(ask: wire.SwitchPolicy, api: DaemonApi, context: Context) -> Answer:
    api.rights.switch_policy(context.peer.caller, source=bool(ask.source))
    if not 1 <= len(ask.name) <= 200 or len(ask.source) > 100_000:
        raise BadRequest("a policy's name has 1 to 200 characters, its source at most 100,000")
    if any(map(has_control, _strings([ask.name, ask.options]))):
        raise BadRequest("a policy's name and options hold no control characters; leave them out")
    if len(msgspec.json.encode(ask.options)) > OPTION_BYTES:
        raise BadRequest(f"a policy's options may take {OPTION_BYTES:,} bytes as JSON at most")
    asked = asdict(replace(ask, reason=ask.reason[:REASON_CHARS]))
    api.switch_policy(UsePolicy(**api.store.stamp(context.peer.user), **asked), context)
    return None


@answer.register
def _explain(ask: wire.ExplainJob, api: DaemonApi, context: Context) -> Answer:
    now, core = api.store.now(), api.store.core
    whole = api.visibility.whole(context.peer.caller, found(core.state, ask.job).owner)
    return wire.Explanation(text=core.explain(ask.job, now, whole=whole), until=core.until(ask.job, now))


@answer.register
def _follow(ask: wire.Follow, api: DaemonApi, context: Context) -> Answer:
    return api.subscriptions.follow(context.peer, ask)


@answer.register
def _unfollow(ask: wire.Unfollow, api: DaemonApi, context: Context) -> Answer:
    api.subscriptions.unfollow(context.peer, ask.stream)
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
def _report_failed_hosts(ask: wire.ReportFailedHosts, api: DaemonApi, context: Context) -> Answer:
    api.agents.check_agent(context.peer)
    known = {host.name for host in api.store.core.state.hosts if host.url}
    failed = {name: replace(one, why=visible(one.why)[:300]) for name, one in ask.hosts.items() if name in known}
    api.agents.failed_hosts[context.peer.user] = failed
    # At once: an attempt that such a host cost is over in a moment, and the next one must not begin there.
    hosts = kept_from(api.store.core.state.hosts, api.agents.failed_hosts)
    api.store.observe(HostsReported(**api.store.stamp(), hosts=hosts))
    return wire.Done()


@answer.register
def _read_usage(ask: wire.ReadUsage, api: DaemonApi, context: Context) -> Answer:
    api.answer_later(_used(ask.since, _own(api, context), api), context)
    return None


async def _used(since: float, own: str | None, api: DaemonApi) -> wire.Used:
    now = api.store.now()
    rows = await api.usage.rows(since, now)
    return wire.Used(rows=tuple(row for row in rows if own in {None, row.user}), until=now)


def _own(api: DaemonApi, context: Context) -> str | None:
    """Return the user whose figures may be read; None: everybody's."""
    return None if api.rights.sees_all(context.peer.caller) else context.peer.user


@answer.register
def _read_audit(ask: wire.ReadAudit, api: DaemonApi, context: Context) -> Answer:
    api.answer_later(api.audit.rows(ask, _own(api, context)), context)
    return None


@answer.register
def _read_past(ask: wire.ReadPast, api: DaemonApi, context: Context) -> Answer:
    api.answer_later(_past(ask, api, context), context)
    return None


async def _past(ask: wire.ReadPast, api: DaemonApi, context: Context) -> wire.Past:
    if not math.isfinite(ask.since):
        raise BadRequest("the time from which on the past is asked for is a finite number of seconds")
    state, caller = api.store.core.state, context.peer.caller
    head = state.seq
    found, more = await api.past.events(state, ask.since, ask.after, ended=ask.ended)
    while True:
        last = found[-1].seq if more else max(head, found[-1].seq if found else 0)
        seen = (api.visibility.event(caller, event, _owner(state, event)) for event in found)
        told = wire.Past(events=tuple(event for event in seen if event is not None), last=last, more=more)
        if len(found) == 1 or len(msgspec.msgpack.encode(told)) < wire.MAX_FRAME - 1024:
            return told
        found, more = found[: len(found) // 2], True


def _owner(state: State, event: Event) -> str | None:
    job = getattr(event.data, "job", None)
    return None if job is None else state.owner_of(job)


@answer.register
def _register_key(ask: wire.RegisterKey, api: DaemonApi, context: Context) -> Answer:
    curve = api.settings.curve
    if curve is None:
        raise BadRequest("this pool has no address for keys: start its daemon with --tcp tcp://0.0.0.0:7000")
    user = _name_in_pool(ask.user, ask.kind)
    api.rights.register_keys(context.peer.caller, user, ask.rights)
    if any(map(has_control, ask.groups)):
        raise BadRequest("the name of a group holds control characters; give it another one")
    asked = {name: getattr(ask, name) for name in ("key", "rights", "groups", "term_s")}
    api.store.command(AdmitKey(**api.store.stamp(context.peer.user), user=user, **asked))
    expires_at = api.store.core.state.registered[ask.key].expires_at
    server_key = curve.public.decode()
    return wire.KeyAdmitted(user=user, endpoint=api.endpoints[-1], server_key=server_key, expires_at=expires_at)


def _name_in_pool(name: str, kind: str) -> str:
    """Return a name that no UNIX user and no user of another kind has; BadRequest if such a name is impossible."""
    if has_control(name) or any(char in " #/" for char in name) or name.startswith(SERVICE):
        raise BadRequest(
            f"{visible(name)[:200]!r} can't be a user of a pool: a name holds no space, no # and no /, "
            f"and does not begin with {SERVICE}"
        )
    return name if kind == "user" else SERVICE + name


@answer.register
def _revoke_key(ask: wire.RevokeKey, api: DaemonApi, context: Context) -> Answer:
    api.rights.register_keys(context.peer.caller, "", ())
    known = api.store.core.state.registered.get(ask.key)
    if known is not None and ask.user and known.user != _name_in_pool(ask.user, ask.kind):
        raise NotAllowed("this key is another user's; only that one may take it back")
    stamp = api.store.stamp(context.peer.user)
    api.store.command(WithdrawKey(**stamp, key=ask.key, reason=ask.reason[:REASON_CHARS]))
    return wire.Done()


@answer.register
def _read_metrics(_ask: wire.ReadMetrics, api: DaemonApi, context: Context) -> Answer:
    api.rights.read_metrics(context.peer.caller)
    return api.metrics()


@answer.register
def _read_problem(_ask: wire.ReadProblem, api: DaemonApi, _context: Context) -> Answer:
    return wire.Problem(text=str(api.store.failing or ""))


@answer.register
def _ping(_ask: wire.Ping, _api: DaemonApi, _context: Context) -> Answer:
    return wire.Done()


@answer.register
def _shutdown(_ask: wire.Shutdown, api: DaemonApi, context: Context) -> Answer:
    api.rights.shut_down(context.peer.caller)
    api.stop()
    return wire.Done()
