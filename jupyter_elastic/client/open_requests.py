"""Keeps unanswered requests to the daemon, so that they can be sent again after a reconnection."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import ElasticError, ProtocolError

_T = TypeVar("_T")


class Requests:
    """Open requests by number, in the order in which they were made."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[bytes, asyncio.Future[wire.AnyAnswer]]] = {}
        self._last = 0

    def __contains__(self, number: int | None) -> bool:
        return number in self._open

    def add(self, ask: wire.AnyAsk) -> tuple[int, bytes, asyncio.Future[wire.AnyAnswer]]:
        """Make a new request; return its number, its frame, and the future of its answer."""
        self._last += 1
        frame = wire.encode(wire.Request(id=self._last, ask=ask))
        future = asyncio.get_running_loop().create_future()
        self._open[self._last] = frame, future
        return self._last, frame, future

    def drop(self, number: int | None) -> None:
        """Forget a request whose answer nobody waits for any longer."""
        self._open.pop(number or 0, None)

    def frames(self) -> list[bytes]:
        """Return all open requests' frames, to be sent again."""
        return [frame for frame, _ in self._open.values()]

    def answered(self, number: int, answer: wire.AnyAnswer) -> None:
        """Set an answer on its request; an answer that nobody waits for is ignored."""
        _, future = self._open.pop(number, (b"", None))
        if future is not None and not future.done():
            future.set_result(answer)

    def fail(self, problem: ElasticError) -> None:
        """Fail all open requests."""
        for _, future in self._open.values():
            if not future.done():
                future.set_exception(problem)
                future.exception()  # retrieved: a request of the client's own has nobody who would look at it
        self._open.clear()


def expect(answer: wire.AnyAnswer, kind: type[_T]) -> _T:
    """Return the answer if it is of this kind; ProtocolError if a daemon of another version sent another one."""
    if not isinstance(answer, kind):
        raise ProtocolError(f"the daemon answered {type(answer).__name__} where {kind.__name__} was due; update it")
    return answer
