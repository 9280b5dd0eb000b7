"""Pairs the questions of one connection with their answers.

Knows kinds and numbers of messages; must not know how messages travel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from jupyter_elastic.protocol import host_agent_messages as messages
from jupyter_elastic.protocol.host_agent_messages import FromHostAgent, ToHostAgent
from jupyter_elastic.types.errors import EngineError

ASK_S = 20.0
"""Seconds that the host agent may take to answer a request."""


class Questions:
    """The unanswered questions to the host agent of host `name`; `send` sends a message there."""

    def __init__(self, name: str, send: Callable[[ToHostAgent], None]) -> None:
        self._name = name
        self._send = send
        self._lost = ""
        self._answers: dict[tuple[type, int], asyncio.Future[Any]] = {}

    async def ask(self, question: ToHostAgent, kind: type, number: int, limit_s: float = ASK_S) -> Any:
        """Ask, and return the answer of this kind. EngineError when the host is lost or does not answer in time."""
        if self._lost:
            raise EngineError(f"host {self._name} is lost: {self._lost}")
        waiting = self._expect(kind, number)
        self._send(question)
        return await self._wait(waiting, limit_s)

    async def next(self, kind: type, number: int) -> Any:
        """Return the next part of an answer. EngineError when the part does not come in time."""
        return await self._wait(self._answers[kind, number])

    def _expect(self, kind: type, number: int) -> asyncio.Future[Any]:
        waiting = self._answers[kind, number] = asyncio.get_running_loop().create_future()
        return waiting

    async def _wait(self, waiting: asyncio.Future[Any], limit_s: float = ASK_S) -> Any:
        try:
            async with asyncio.timeout(limit_s):
                return await waiting
        except TimeoutError as problem:
            raise EngineError(f"host {self._name} does not answer within {limit_s:g} s") from problem

    def answer(self, message: FromHostAgent, number: int) -> None:
        """Give a message to whoever expects it."""
        waiting = self._answers.pop((type(message), number), None)
        if waiting is None:
            return
        if isinstance(message, messages.Commit) and message.found and not message.last:
            self._expect(type(message), number)
        if not waiting.done():
            waiting.set_result(message)

    def fail(self, why: str) -> None:
        """Fail all questions: no answer will come."""
        self._lost = why
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(EngineError(f"host {self._name} is lost: {why}"))
                waiting.exception()  # the caller may be gone
