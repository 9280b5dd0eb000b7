"""A worker on another host, for whoever started it: a `WorkerProcess` without a pid.

Knows the signal's message; must not know the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jupyter_elastic.protocol import host_agent_messages as messages
from jupyter_elastic.protocol.host_agent_messages import ToHostAgent


class RemoteWorker:
    """A worker on another host."""

    known = None

    def __init__(self, send: Callable[[ToHostAgent], None], channel: int) -> None:
        self._send = send
        self._channel = channel
        self._code: int | None = None
        self._gone = asyncio.Event()
        self._cleared = asyncio.Event()

    @property
    def is_cleared(self) -> bool:
        """True when the host agent has reported that nothing is left of the worker."""
        return self._cleared.is_set()

    def send(self, number: int) -> None:
        """Send the worker a signal."""
        self._send(messages.Signal(self._channel, number))

    def stopped(self) -> bool:
        """Return False: signals that stopped the worker are not known here."""
        return False

    async def gone(self) -> None:
        """Return when the worker has ended, or its host is lost."""
        await self._gone.wait()

    async def ended(self) -> int | None:
        """Wait like `gone`; return the exit code."""
        await self._gone.wait()
        return self._code

    async def clear(self) -> None:
        """Return when the host agent reports that nothing is left of the worker, or can't be alive to report it."""
        await self._cleared.wait()

    def exited(self, code: int | None, *, cleared: bool) -> None:
        """Record that the worker has ended."""
        self._code = code
        self._gone.set()
        if cleared:
            self._cleared.set()

    def cleared(self) -> None:
        """Record that nothing is left of the worker."""
        self._cleared.set()
