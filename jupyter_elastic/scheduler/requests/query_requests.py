"""Answer readers: jobs and why they wait, the events, and usage, decisions and the past, and the daemon's figures.

Knows who may see what; must not change anything.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.access.visibility import Visibility
from jupyter_elastic.scheduler.core.decide_commands import found
from jupyter_elastic.scheduler.core.explain import policy_reason
from jupyter_elastic.scheduler.core.state import State
from jupyter_elastic.scheduler.event_streams import Subscriptions
from jupyter_elastic.scheduler.journal.queries import AuditQuery, HistoryQuery, UsageQuery
from jupyter_elastic.scheduler.journal.state_store import Context, StateStore
from jupyter_elastic.scheduler.requests.answering import Answer, LongAnswer, Service, answers
from jupyter_elastic.types import Event
from jupyter_elastic.types.errors import BadRequest


@answers
def _list_jobs(
    ask: wire.ListJobs, context: Context, store: StateStore, visibility: Visibility, rights: Rights
) -> LongAnswer:
    limit = min(max(ask.limit, 1), 3_000)  # what surely fits into a frame
    infos = store.core.jobs(all=ask.all, job=ask.job, limit=limit, owner=ask.owner)
    caller, state = context.peer.caller, store.core.state
    seq = state.seq
    # A policy's word may be one of a moment later: whoever follows the events gets it again.
    shown = yield from visibility.jobs(caller, infos, lambda job: policy_reason(state, job))
    while len(shown) > 1 and len(msgspec.msgpack.encode(shown)) > wire.MAX_FRAME - 1024:
        shown = shown[len(shown) // 2 :]
    yield
    if rights.sees_all(caller):  # what others may not see says no folder either
        shown = tuple(
            info if info.owner == context.peer.user else replace(info, uid=state.ids.get(info.owner, -1))
            for info in shown
        )
    return wire.Jobs(jobs=shown, seq=seq)


@answers
def _explain(ask: wire.ExplainJob, context: Context, store: StateStore, visibility: Visibility) -> Answer:
    now, core = store.now(), store.core
    whole = visibility.whole(context.peer.caller, found(core.state, ask.job).owner)
    return wire.Explanation(text=core.explain(ask.job, now, whole=whole), until=core.until(ask.job, now))


@answers
def _follow(ask: wire.Follow, context: Context, subscriptions: Subscriptions) -> Answer:
    return subscriptions.follow(context.peer, ask)


@answers
def _unfollow(ask: wire.Unfollow, context: Context, subscriptions: Subscriptions) -> Answer:
    subscriptions.unfollow(context.peer, ask.stream)
    return wire.Done()


@answers
async def _read_usage(
    ask: wire.ReadUsage, context: Context, store: StateStore, usage: UsageQuery, rights: Rights
) -> wire.Used:
    now, own = store.now(), _own(context, rights)
    rows = await usage.rows(ask.since, now)
    return wire.Used(rows=tuple(row for row in rows if own in {None, row.user}), until=now)


def _own(context: Context, rights: Rights) -> str | None:
    """Return the user whose figures may be read; None: everybody's."""
    return None if rights.sees_all(context.peer.caller) else context.peer.user


@answers
def _read_audit(ask: wire.ReadAudit, context: Context, audit: AuditQuery, rights: Rights) -> Answer:
    return audit.rows(ask, _own(context, rights))


@answers
async def _read_past(
    ask: wire.ReadPast, context: Context, store: StateStore, past: HistoryQuery, visibility: Visibility
) -> wire.Past:
    if not math.isfinite(ask.since):
        raise BadRequest("the time from which on the past is asked for is a finite number of seconds")
    state, caller = store.core.state, context.peer.caller
    head = state.seq
    found, more = await past.events(state, ask.since, ask.after, ended=ask.ended)
    while True:
        last = found[-1].seq if more else max(head, found[-1].seq if found else 0)
        seen = (visibility.event(caller, event, _owner(state, event)) for event in found)
        told = wire.Past(events=tuple(event for event in seen if event is not None), last=last, more=more)
        if len(found) == 1 or len(msgspec.msgpack.encode(told)) < wire.MAX_FRAME - 1024:
            return told
        found, more = found[: len(found) // 2], True


def _owner(state: State, event: Event) -> str | None:
    job = getattr(event.data, "job", None)
    return None if job is None else state.owner_of(job)


@answers
def _read_metrics(_ask: wire.ReadMetrics, context: Context, rights: Rights, service: Service) -> Answer:
    rights.read_metrics(context.peer.caller)
    return service.metrics()


@answers
def _read_problem(_ask: wire.ReadProblem, store: StateStore) -> Answer:
    return wire.Problem(text=str(store.failing or ""))
