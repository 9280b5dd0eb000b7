"""Define how a request of a peer is answered, or refused, and which parts of the daemon an answer may use.

Knows the daemon's parts and requests in general; must not know what a single request does: each has its case in one of
the modules beside.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Generator
from functools import singledispatch
from typing import Protocol, TypeAlias

import msgspec

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.access.shares import Shares
from jupyter_elastic.scheduler.access.visibility import Visibility
from jupyter_elastic.scheduler.agents import Agents
from jupyter_elastic.scheduler.event_streams import Subscriptions
from jupyter_elastic.scheduler.journal.audit_query import AuditQuery
from jupyter_elastic.scheduler.journal.history_query import HistoryQuery
from jupyter_elastic.scheduler.journal.state_store import Context, StateStore
from jupyter_elastic.scheduler.journal.usage_query import UsageQuery
from jupyter_elastic.scheduler.net.rate_limits import Limits
from jupyter_elastic.scheduler.settings import Settings
from jupyter_elastic.types import UsePolicy
from jupyter_elastic.types.errors import BadRequest, ElasticError
from jupyter_elastic.types.texts import has_control

log = logging.getLogger(__name__)
REASON_CHARS = 1_000
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


def check_texts(whose: str, texts: msgspec.Struct) -> None:
    """Refuse texts for other users' terminals that contain control characters."""
    for name in texts.__struct_fields__:
        text = getattr(texts, name)
        if isinstance(text, str) and has_control(text):
            raise BadRequest(f"{whose} has a {name} with control characters, {text[:100]!r}; leave them out")
