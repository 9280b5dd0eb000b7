"""What an engine knows of the host that a worker is on: a `Hand` starts workers there, each is a `WorkerProcess`."""

from __future__ import annotations

import socket
from typing import Protocol

from jupyter_elastic.platform.processes import ProcessId


class WorkerProcess(Protocol):
    """A worker, on this host or on another."""

    @property
    def known(self) -> ProcessId | None:
        """(pid, start time) on this host; None on another one, where its pid means nothing here."""
        ...

    @property
    def is_cleared(self) -> bool:
        """Whether nothing lives any more that this worker, which is gone, had started."""
        ...

    def send(self, number: int) -> None:
        """Signal it, if it lives."""
        ...

    def stopped(self) -> bool:
        """Whether a signal is known to have stopped it."""
        ...

    async def gone(self) -> None:
        """Come back when it has ended, or its host is lost."""
        ...

    async def ended(self) -> int | None:
        """`gone`, with its exit code, negative for a signal; None when nobody knows it."""
        ...

    async def clear(self) -> None:
        """See to it that nothing lives any more which this worker, which is gone, had started."""
        ...


class Hand(Protocol):
    """Starts workers on one host, for one attempt."""

    async def start(self, first: bytes) -> tuple[WorkerProcess, socket.socket]:
        """A worker, and this process's end of its connection. EngineError when none can be started.

        `first` is what the worker finds there, short enough for a socket's buffer.
        """
        ...

    def close(self) -> None:
        """Let go of the host."""
        ...
