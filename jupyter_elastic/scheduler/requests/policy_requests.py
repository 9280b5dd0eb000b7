"""Answer requests about policies: list and switch them, and read their view and what they would give away.

Knows options and views; must not know how a policy is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.journal.state_store import Context
from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.scheduler.requests.answering import REASON_CHARS, Answer, DaemonApi, LongAnswer, answer
from jupyter_elastic.types import UsePolicy
from jupyter_elastic.types.errors import BadRequest, NotAllowed
from jupyter_elastic.types.texts import has_control

VIEW_JOBS = 2000
OPTION_BYTES = 16 * 1024


@answer.register
def _list_policies(_ask: wire.ListPolicies, api: DaemonApi, context: Context) -> Answer:
    state, refusal = api.store.core.state, ""
    try:
        api.rights.switch_policy(context.peer.caller, source=False)
    except NotAllowed as problem:
        refusal = str(problem)
    return wire.Policies(policies=plugins.policy_infos(state.policy, state.policy_options), refusal=refusal)


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


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts in a value as msgpack holds them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


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
