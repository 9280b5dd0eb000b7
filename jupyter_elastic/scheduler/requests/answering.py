"""Define how a request of a peer is answered, or refused: each answer names the parts of the daemon that it needs.

Knows requests in general; must not know what a single request does: each has its case in one of the modules beside.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_type_hints

import msgspec

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.journal.state_store import Context
from jupyter_elastic.types.errors import BadRequest, ElasticError
from jupyter_elastic.types.texts import has_control

log = logging.getLogger(__name__)
REASON_CHARS = 1_000
LongAnswer: TypeAlias = Generator[None, None, wire.AnyAnswer]
"""Answer built in parts, with other requests answered in between; the state is read before the first pause."""
Answer: TypeAlias = wire.AnyAnswer | LongAnswer | Awaitable[wire.AnyAnswer] | None
"""Answer to a request. One that is awaited is sent when it is ready; None: somebody else sends it later."""
Parts: TypeAlias = Mapping[type, Any]
"""Parts of the daemon, each under its type."""
_F = TypeVar("_F", bound=Callable[..., Any])
_CASES: dict[type, tuple[Callable[..., Answer], tuple[type, ...]]] = {}


class Service(NamedTuple):
    """The daemon as a service."""

    folder: str
    """The pool's folder."""
    started_at: float
    endpoints: list[str]
    metrics: Callable[[], wire.Metrics]
    """Returns all figures of the daemon."""
    stop: Callable[[], None]
    """Ends the daemon after this answer."""


def answers(case: _F) -> _F:
    """Let a function answer the requests of its first parameter's type.

    Each further parameter gets the `Context`, or the part of the daemon that has its type.
    """
    hints = get_type_hints(case)
    hints.pop("return")
    ask, *needed = hints.values()
    _CASES[ask] = case, tuple(needed)
    return case


def needs() -> Mapping[type, tuple[type, ...]]:
    """Return the types of what each request's answer gets, by the type of the request."""
    return {ask: needed for ask, (_, needed) in _CASES.items()}


def answer(ask: wire.Ask, context: Context, parts: Parts) -> Answer:
    """Answer a request; raises an ElasticError if it is refused."""
    case, needed = _CASES[type(ask)]
    return case(ask, *(context if kind is Context else parts[kind] for kind in needed))


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
