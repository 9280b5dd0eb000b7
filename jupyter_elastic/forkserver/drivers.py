"""Where drivers are born: a light process with everything imported that forks drivers in milliseconds.

One nursery per interpreter, held by the agent on a socket pair; for each byte it is sent it forks a driver that waits
for its attempt, and hands the agent that driver's pipe. The agent keeps one ahead. When the agent goes the nursery and
the drivers that wait go, those that have an attempt stay. The nursery has one thread, no event loop, no framework and
no user code, so forking it is safe. The upper half of this file is the agent's side, the lower the nursery itself
(`python -m jupyter_elastic.forkserver.drivers <fd>`). Knows interpreters and forks; must not know jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

import msgspec
from msgspec import Struct

from jupyter_elastic.driver import driver
from jupyter_elastic.errors import EngineError
from jupyter_elastic.platform import private_files
from jupyter_elastic.platform.processes import Known, myself
from jupyter_elastic.types import Launch

READY_TIMEOUT_S = 120.0
"""How long an interpreter may take to import us (cold network disks)."""
MAX_MESSAGE = 64 * 1024

log = logging.getLogger(__name__)


class Forked(Struct, frozen=True):
    """From the nursery, with the driver's pipe; without one it says what the problem was."""

    pid: int = 0
    problem: str = ""


class Birth(Struct, frozen=True):
    """To a driver that waits: its attempt."""

    attempt: str
    runtime: str
    launch: Launch


_births = msgspec.json.Decoder(Birth)  # made before drivers are forked


class Born(Struct, frozen=True):
    """A line from the driver once its attempt is under way, or why it is not: `driver.HELD` if it has another driver.

    What follows it is what `link` says.
    """

    pid: int
    start: float
    problem: str = ""


# --- the agent's side -------------------------------------------------------------------------------------------------


class Spare(NamedTuple):
    """A driver that waits to be told its attempt."""

    pid: int
    pipe: socket.socket


class Newborn(NamedTuple):
    """A driver that has an attempt, and the connection to it."""

    process: Known
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Nursery:
    """The agent's hold on the nursery of one interpreter. It is started by the first birth, or by `start`."""

    def __init__(self, python: str) -> None:
        self.python = python
        self.used = time.monotonic()
        """When a driver was last wanted."""
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._said: IO[bytes] | None = None
        self._spares: deque[Spare] = deque()
        self._wanted: deque[asyncio.Future[Spare]] = deque()

    async def start(self) -> None:
        """Start it if it doesn't run; EngineError when this interpreter can't be a driver's."""
        async with self._lock:
            if self._process is not None:
                return
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            try:
                with theirs:
                    self._process = await asyncio.to_thread(self._spawn, theirs.fileno())
            except OSError as problem:
                ours.close()
                raise EngineError(
                    f"can't start the interpreter {self.python}: {problem.strerror or problem}; its environment was "
                    "moved or removed: submit the job again from a kernel that runs"
                ) from problem
            self._socket = ours
            asyncio.get_running_loop().add_reader(ours, self._hear, ours)
            try:
                async with asyncio.timeout(READY_TIMEOUT_S):
                    self._spares.append(await self._next_spare())
            except (EngineError, TimeoutError) as problem:
                reason = problem if isinstance(problem, EngineError) else self._end()
                raise EngineError(f"{self.python} can't run a job's driver: {reason}") from problem

    async def birth(self, attempt: Path, runtime: Path, launch: Launch) -> Newborn | None:
        """A driver for an attempt, or None when the attempt has one already, or had this one and it died.

        EngineError when it can't be started or gave up.
        """
        self.used = time.monotonic()
        await self.start()
        spare = await self._told(msgspec.json.encode(Birth(str(attempt), str(runtime), launch)) + b"\n")
        self._ask_for_spare()
        reader, writer = await asyncio.open_connection(sock=spare.pipe)
        born = Born(spare.pid, 0.0, driver.HELD)
        try:
            with contextlib.suppress(OSError, ValueError, msgspec.DecodeError):
                born = msgspec.json.decode(await reader.readline(), type=Born)
            if not born.problem:
                return Newborn((born.pid, born.start), reader, writer)
        finally:
            if born.problem:
                writer.close()
        if born.problem == driver.HELD:  # whether it lives is for the attempt's own files to say
            return None
        raise EngineError(f"the driver (process {born.pid}) can't start: {born.problem}")

    async def close(self) -> None:
        """End the nursery; drivers that have an attempt go on."""
        self._end()

    async def _told(self, birth: bytes) -> Spare:
        """The driver that took this birth."""
        while True:
            spare = self._spares.popleft() if self._spares else await self._next_spare()
            try:
                spare.pipe.send(birth)
            except OSError:  # it died while it waited
                spare.pipe.close()
            else:
                return spare

    async def _next_spare(self) -> Spare:
        wanted: asyncio.Future[Spare] = asyncio.get_running_loop().create_future()
        self._wanted.append(wanted)
        try:
            if self._socket is None:
                raise EngineError("the nursery of drivers is gone")
            with contextlib.suppress(BrokenPipeError):  # it has ended, which is heard at once
                await asyncio.get_running_loop().sock_sendall(self._socket, b"1")
            return await wanted
        except OSError as problem:
            raise EngineError(f"the nursery of drivers is gone: {problem}") from problem
        finally:
            with contextlib.suppress(ValueError):
                self._wanted.remove(wanted)

    def _ask_for_spare(self) -> None:
        if self._socket is not None and not self._spares:
            with contextlib.suppress(OSError):  # asked for when it is needed
                self._socket.send(b"1")

    def _spawn(self, handle: int) -> subprocess.Popen[bytes]:
        # -P: the folder in which the agent happens to run must not shadow our modules
        return subprocess.Popen(
            [self.python, "-P", "-m", "jupyter_elastic.forkserver.drivers", str(handle)],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            pass_fds=[handle],
            start_new_session=True,
        )

    def _hear(self, ours: socket.socket) -> None:
        """The nursery has forked a driver, or is gone."""
        try:
            data, handles, _, _ = socket.recv_fds(ours, MAX_MESSAGE, 1)
        except BlockingIOError:
            return
        except OSError:
            data, handles = b"", []
        if not data:
            waiting, reason = list(self._wanted), self._end()
            for wanted in waiting:
                if not wanted.done():
                    wanted.set_exception(EngineError(f"the nursery of drivers ended: {reason}"))
            return
        forked = msgspec.json.decode(data, type=Forked)
        longest = next((wanted for wanted in self._wanted if not wanted.done()), None)
        if not handles:
            if longest is not None:
                longest.set_exception(EngineError(f"no driver could be made: {forked.problem}"))
            return
        spare = Spare(forked.pid, socket.socket(fileno=handles[0]))
        spare.pipe.setblocking(False)
        if longest is not None:
            longest.set_result(spare)
        else:
            self._spares.append(spare)

    def _end(self) -> str:
        """Let go of the process; what it said last."""
        words = ""
        if self._socket is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before us
                asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
        while self._spares:
            self._spares.pop().pipe.close()
        if self._process is not None:
            try:
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._said is not None:
            self._said.seek(0)
            words = self._said.read().decode(errors="replace").strip()
            self._said.close()
        code = self._process.returncode if self._process is not None else None
        self._process = self._socket = self._said = None
        return words.splitlines()[-1] if words else f"it ended with code {code}"


# --- the nursery itself -----------------------------------------------------------------------------------------------


def serve(ours: socket.socket) -> None:
    """Fork a driver for each byte, until the agent is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave no zombies; their end is seen by pidfd
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver.preload()
    gc.collect()
    gc.freeze()
    while ours.recv(MAX_MESSAGE):
        agents, its = socket.socketpair()
        with agents, its:
            try:
                pid = os.fork()
            except OSError as problem:
                ours.send(msgspec.json.encode(Forked(problem=str(problem))))
                continue
            if pid == 0:
                ours.close()
                agents.close()
                _wait_and_drive(its)
            socket.send_fds(ours, [msgspec.json.encode(Forked(pid))], [agents.fileno()])


def _wait_and_drive(pipe: socket.socket) -> NoReturn:
    """Wait for an attempt and become its driver."""
    code, answered = 1, False

    def answer(problem: str) -> None:
        nonlocal answered
        answered = True
        with contextlib.suppress(OSError):  # an agent that is gone finds us by driver.json
            pipe.sendall(msgspec.json.encode(Born(*myself(), problem=problem)) + b"\n")

    try:
        os.setsid()
        for name in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(name, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text("elastic-driver", encoding="ascii")
        with pipe.makefile("rb") as lines:  # the agent says one thing, and waits for our answer
            data = lines.readline()
        if not data:  # the agent is gone
            os._exit(0)
        birth = _births.decode(data)
        with private_files.open_private(Path(birth.attempt) / "driver.log", append=True) as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        code = driver.run(Path(birth.attempt), Path(birth.runtime), birth.launch, answer, pipe)
    except BaseException:
        traceback.print_exc()
        if not answered:
            answer(traceback.format_exc(limit=0).strip())
    finally:
        with contextlib.suppress(Exception):
            logging.shutdown()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
