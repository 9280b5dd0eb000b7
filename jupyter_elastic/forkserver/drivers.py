"""Starts drivers for an agent: from the forkserver of the job's interpreter, or reuses one that stayed for its session.

Must not know jobs.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import NamedTuple

from jupyter_elastic.forkserver import parents
from jupyter_elastic.forkserver.fork_client import ForkServerAddress, ForkServerClient, our_source
from jupyter_elastic.jobfiles.sessions import NAME, SessionFolder
from jupyter_elastic.platform import processes
from jupyter_elastic.platform.peer import check_same_user
from jupyter_elastic.protocol.driver_messages import (
    DRIVER_STARTED,
    DRIVER_STAYS,
    START_DRIVER,
    DriverStarted,
    StartAgent,
    StartDriver,
)
from jupyter_elastic.types.errors import ElasticError, EngineError, ProtocolError

STAYING_S = 1.0
"""Seconds that a staying driver may take to answer; then another one is forked."""


class DriverProcess(NamedTuple):
    """A driver that has an attempt, and the connection to it."""

    process: processes.ProcessId
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


def address(python: str) -> ForkServerAddress:
    """Return the forkserver of drivers for this interpreter."""
    return ForkServerAddress(parents.DRIVERS, python, os.environ)


class DriverLauncher:
    """Starts drivers. The forkserver of this process's own interpreter is kept as long as this process lives."""

    def __init__(self) -> None:
        self._connecting = asyncio.Lock()
        """Makes drivers that start at the same time share one forkserver."""

    async def start(self, order: StartDriver) -> DriverProcess | None:
        """Start an attempt's driver; return None if the attempt has one already, or had this one and it died.

        EngineError when the driver can't be started or gave up.
        """
        session = order.launch.spec.session
        process, reader, writer = (session and await _staying(session)) or await self._new(order.launch.spec.python)
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
        if answer is None or answer.held:  # the attempt's own files tell if the driver lives
            return None
        raise EngineError(f"the driver (process {process[0]}) can't start: {answer.problem}")

    async def _new(self, python: str) -> DriverProcess:
        async with self._connecting:
            client = await address(python).connect(start=True)
        try:
            return await _forked(client, processes.this_process() if python == sys.executable else None)
        except (EngineError, OSError, TimeoutError) as problem:
            raise EngineError(f"no driver could be started: {problem or type(problem).__name__}") from problem


async def _staying(session: str) -> DriverProcess | None:
    """Return the driver of the session's last cell, if it answers at once and runs this version of the package."""
    if not NAME.fullmatch(session):
        return None
    try:
        async with asyncio.timeout(STAYING_S):
            reader, writer = await asyncio.open_unix_connection(str(SessionFolder(session).driver_socket))
            try:
                check_same_user(writer.get_extra_info("socket"))
                found = await DRIVER_STAYS.read(reader)
                if found is not None and found.source == our_source():
                    return DriverProcess(found.process, reader, writer)
            except BaseException:
                writer.close()
                raise
            writer.close()
    except (OSError, TimeoutError, ElasticError):
        pass
    return None


async def start_agent(python: str, order: StartAgent) -> None:
    """Have a process of the forkserver of drivers, which must live, start an agent; return when an agent lives.

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
    """Return a forked process that waits for its first message, and close `client`."""
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
