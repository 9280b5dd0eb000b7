"""An event loop whose clock jumps to the next timer instead of waiting: hours of pacing pass in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Jumping(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only when nothing else is left to do. Not for code that waits for threads or other processes."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """What `asyncio.run` does, in virtual time that begins at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
