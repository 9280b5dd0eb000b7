"""The forkserver of drivers, with the engines imported ahead: `python -m jupyter_elastic.driver.forked_driver`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from jupyter_elastic.driver import driver
from jupyter_elastic.driver.staying import Staying
from jupyter_elastic.forkserver import fork_client, server
from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder
from jupyter_elastic.platform import detached, paths, private_files
from jupyter_elastic.platform.endpoints import AgentRecord
from jupyter_elastic.protocol.driver_messages import DRIVER_STARTED, START_DRIVER, DriverStarted, StartAgent
from jupyter_elastic.types.errors import ElasticError


def import_ahead(_: Sequence[str]) -> None:
    """Load the engines."""
    driver.preload()


def prepare() -> Callable[[socket.socket], int]:
    """Do a driver's preparation that needs no attempt; return the function that serves its connection."""
    with contextlib.suppress(OSError):  # the name in `ps` and `top`
        Path("/proc/self/comm").write_text("elastic-driver", encoding="ascii")
    # A collection writes to all objects: the pages that are shared with the forkserver are copied now, not while
    # somebody waits. (A worker's would be too many: each has the framework's.)
    gc.unfreeze()
    gc.collect()
    return functools.partial(drive, driver.prepare())


def drive(runner: asyncio.Runner, connection: socket.socket) -> int:
    """Be the driver of an attempt, in a session of one cell after the other; or start the agent that a driver asks for.

    Returns the exit code.
    """
    staying: Staying | None = None
    while True:
        code, session = drive_once(runner, connection)
        connection.close()
        if not session:
            return code
        staying = staying or Staying(session)
        runner = driver.new_runner()
        if (found := staying.next_cell()) is None:
            return code
        connection = found


def drive_once(runner: asyncio.Runner, connection: socket.socket) -> tuple[int, str]:
    """Wait for an attempt and be its driver, or start the agent; return exit code and session to stay for, or "".

    A driver stays only if it holds nothing of its attempt: no lease timer, no cold workers that it started itself.
    """
    answers: list[DriverStarted] = []

    def answer(started: DriverStarted) -> None:
        answers.append(started)
        with contextlib.suppress(OSError):  # an agent that is gone finds this driver by driver.json
            connection.sendall(DRIVER_STARTED.encode(started))

    try:
        with connection.makefile("rb") as stream:  # the agent sends one message, and waits for the answer
            order = START_DRIVER.receive(stream)
        if order is None:  # the agent is gone
            return 0, ""
        if isinstance(order, StartAgent):
            start_agent(order)
            answer(DriverStarted(""))
            return 0, ""
        folder = AttemptFolder(Path(order.attempt))
        with private_files.open_private(folder.log, append=True) as file:
            for stream_number in (1, 2):
                os.dup2(file.fileno(), stream_number)
        code = driver.run(runner, folder, Path(order.runtime), order.launch, answer, connection, order.renewed_at)
    except ElasticError as problem:
        answer(DriverStarted(str(problem)))
    except Exception:
        if not answers:
            answer(DriverStarted(traceback.format_exc(limit=0).strip()))
        with contextlib.suppress(OSError):  # the log may be on a full disk
            traceback.print_exc()
    else:
        stays = not (code or order.launch.lease_s or fork_client.started) and folder.exit() is not None
        return code, order.launch.spec.session if stays else ""
    return 1, ""


def start_agent(order: StartAgent) -> None:
    """Start another agent for the killed one, unless another process has done so, or `stop` was called, meanwhile."""
    with detached.starting("agent").held():
        record = private_files.read_json(paths.agent_file(), AgentRecord)
        if record is not None and record.pid == order.killed and detached.agent_pid() is None:
            command = (*detached.AGENT, *order.arguments)
            detached.start("agent", command, lambda: detached.agent_pid() is not None, python=order.python)


if __name__ == "__main__":
    sys.exit(server.main(import_ahead, prepare, adopts=False, spares=1))
