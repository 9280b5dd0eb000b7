"""Starts drivers for an agent: each is forked from the forkserver of its job's interpreter. Must not know jobs."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import NamedTuple

from jupyter_elastic.forkserver import parents
from jupyter_elastic.forkserver.client import ForkServerAddress, ForkServerClient
from jupyter_elastic.platform import processes
from jupyter_elastic.protocol.driver import DRIVER_STARTED, START_DRIVER, DriverStarted, StartAgent, StartDriver
from jupyter_elastic.types.errors import EngineError, ProtocolError


class DriverProcess(NamedTuple):
    """A driver that has an attempt, and the connection to it."""

    process: processes.ProcessId
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


def address(python: str) -> ForkServerAddress:
    """The forkserver of drivers for this interpreter."""
    return ForkServerAddress(parents.DRIVERS, python, os.environ)


class DriverLauncher:
    """Starts drivers. The forkserver of this process's own interpreter is kept as long as this process lives."""

    def __init__(self) -> None:
        self._connecting = asyncio.Lock()
        """So that many drivers at once start one forkserver."""

    async def start(self, order: StartDriver) -> DriverProcess | None:
        """A driver for an attempt, or None when the attempt has one already, or had this one and it died.

        EngineError when it can't be started or gave up.
        """
        python = order.launch.spec.python
        async with self._connecting:
            client = await address(python).connect(start=True)
        try:
            kept_for = processes.this_process() if python == sys.executable else None
            process, reader, writer = await _forked(client, kept_for)
        except (EngineError, OSError, TimeoutError) as problem:
            raise EngineError(f"no driver could be started: {problem or type(problem).__name__}") from problem
        answer: DriverStarted | None = None
        try:
            writer.write(START_DRIVER.encode(order))
            answer = await DRIVER_STARTED.read(reader)
            if answer == DriverStarted(""):
                return DriverProcess(process, reader, writer)
        except ProtocolError as problem:
            raise EngineError(f"the driver (process {process[0]}) can't start: {problem}") from problem
        finally:
            if answer != DriverStarted(""):
                writer.close()
        if answer is None or answer.held:  # whether it lives is for the attempt's own files to say
            return None
        raise EngineError(f"the driver (process {process[0]}) can't start: {answer.problem}")


async def start_agent(python: str, order: StartAgent) -> None:
    """Have a process of the forkserver of drivers, which must live, start an agent; comes back when one lives.

    EngineError when none could be started.
    """
    _, reader, writer = await _forked(await address(python).connect(start=False))
    try:
        writer.write(START_DRIVER.encode(order))
        answer = await DRIVER_STARTED.read(reader)
    finally:
        writer.close()
    if answer is None or answer.problem:
        raise EngineError(answer.problem if answer is not None else "the process that was to start it died")


async def _forked(client: ForkServerClient, kept_for: processes.ProcessId | None = None) -> DriverProcess:
    """A forked process that waits for its first message; `client` is closed."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = await client.fork(theirs, kept_for)
    except (EngineError, OSError, TimeoutError):
        ours.close()
        raise
    finally:
        client.close()
    return DriverProcess(process.known, *await asyncio.open_connection(sock=ours))
