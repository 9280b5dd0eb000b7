"""Starts drivers for an agent: each is forked from the forkserver of its job's interpreter. Must not know jobs."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import NamedTuple

from jupyter_elastic.forkserver import parents
from jupyter_elastic.forkserver.client import ForkServerAddress
from jupyter_elastic.platform import processes
from jupyter_elastic.protocol.driver import DRIVER_STARTED, START_DRIVER, DriverStarted, StartDriver
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
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await client.fork(theirs, processes.this_process() if python == sys.executable else None)
        except (EngineError, OSError, TimeoutError) as problem:
            ours.close()
            raise EngineError(f"no driver could be started: {problem or type(problem).__name__}") from problem
        finally:
            client.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        answer: DriverStarted | None = None
        try:
            writer.write(START_DRIVER.encode(order))
            answer = await DRIVER_STARTED.read(reader)
            if answer == DriverStarted(""):
                return DriverProcess(process.known, reader, writer)
        except ProtocolError as problem:
            raise EngineError(f"the driver (process {process.pid}) can't start: {problem}") from problem
        finally:
            if answer != DriverStarted(""):
                writer.close()
        if answer is None or answer.held:  # whether it lives is for the attempt's own files to say
            return None
        raise EngineError(f"the driver (process {process.pid}) can't start: {answer.problem}")
