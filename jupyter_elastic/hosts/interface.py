"""The interface between an engine and the host of a worker: a `WorkerHost` starts `WorkerProcess`es."""

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
        """True if no process lives any more that this worker, which is gone, had started."""
        ...

    def send(self, number: int) -> None:
        """Send the worker a signal, if it lives."""
        ...

    def stopped(self) -> bool:
        """Return True if a signal is known to have stopped the worker."""
        ...

    async def gone(self) -> None:
        """Return when the worker has ended, or its host is lost."""
        ...

    async def ended(self) -> int | None:
        """Wait like `gone`; return the exit code, negative for a signal, None if unknown."""
        ...

    async def clear(self) -> None:
        """Kill every process that this worker, which is gone, left behind."""
        ...


class WorkerHost(Protocol):
    """Starts workers on one host, for one attempt."""

    async def start(self, first: bytes) -> tuple[WorkerProcess, socket.socket]:
        """Start a worker; return it and this process's end of its connection. EngineError when none can be started.

        The worker reads `first` from the connection; it is short enough for a socket's buffer.
        """
        ...

    def close(self) -> None:
        """Release the host."""
        ...
