"""Answer requests about policies: list and switch them, and read their view and what they would give away.

Knows options and views; must not know how a policy is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.access.visibility import Visibility
from jupyter_elastic.scheduler.journal.state_store import Context, StateStore
from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.scheduler.planning.planner import Planner
from jupyter_elastic.scheduler.requests.answering import REASON_CHARS, Answer, LongAnswer, answers
from jupyter_elastic.types import UsePolicy
from jupyter_elastic.types.errors import BadRequest, NotAllowed
from jupyter_elastic.types.texts import has_control

VIEW_JOBS = 2000
OPTION_BYTES = 16 * 1024


@answers
def _list_policies(_ask: wire.ListPolicies, context: Context, store: StateStore, rights: Rights) -> Answer:
    state, refusal = store.core.state, ""
    try:
        rights.switch_policy(context.peer.caller, source=False)
    except NotAllowed as problem:
        refusal = str(problem)
    return wire.Policies(policies=plugins.policy_infos(state.policy, state.policy_options), refusal=refusal)


@answers
def _switch_policy(
    ask: wire.SwitchPolicy, context: Context, rights: Rights, planner: Planner, store: StateStore
) -> Answer:
    rights.switch_policy(context.peer.caller, source=bool(ask.source))
    if not 1 <= len(ask.name) <= 200 or len(ask.source) > 100_000:
        raise BadRequest("a policy's name has 1 to 200 characters, its source at most 100,000")
    if any(map(has_control, _strings([ask.name, ask.options]))):
        raise BadRequest("a policy's name and options hold no control characters; leave them out")
    if len(msgspec.json.encode(ask.options)) > OPTION_BYTES:
        raise BadRequest(f"a policy's options may take {OPTION_BYTES:,} bytes as JSON at most")
    asked = asdict(replace(ask, reason=ask.reason[:REASON_CHARS]))
    return planner.switch(UsePolicy(**store.stamp(context.peer.user), **asked))


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts in a value as msgpack holds them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


@answers
def _read_view(_ask: wire.ReadView, context: Context, store: StateStore, visibility: Visibility) -> LongAnswer:
    """Return the policy's view; a what-if of more jobs than this nobody reads, and the view must fit into a frame."""
    state, view = store.core.state, store.core.view(store.now())
    policy, options = state.policy, state.policy_options
    near = yield from visibility.view(context.peer.caller, replace(view, jobs=view.jobs[:VIEW_JOBS]))
    return wire.PoolView(view=near, policy=policy, options=options)


@answers
def _read_demand(ask: wire.ReadDemand, planner: Planner) -> Answer:
    return planner.demand(ask.at_most)
