"""Answer readers: jobs and why they wait, the events, and usage, decisions and the past, and the daemon's figures.

Knows who may see what; must not change anything.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.core.decide_commands import found
from jupyter_elastic.scheduler.core.explain import policy_reason
from jupyter_elastic.scheduler.core.state import State
from jupyter_elastic.scheduler.journal.state_store import Context
from jupyter_elastic.scheduler.requests.answering import Answer, DaemonApi, LongAnswer, answer
from jupyter_elastic.types import Event
from jupyter_elastic.types.errors import BadRequest


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
def _read_metrics(_ask: wire.ReadMetrics, api: DaemonApi, context: Context) -> Answer:
    api.rights.read_metrics(context.peer.caller)
    return api.metrics()


@answer.register
def _read_problem(_ask: wire.ReadProblem, api: DaemonApi, _context: Context) -> Answer:
    return wire.Problem(text=str(api.store.failing or ""))
