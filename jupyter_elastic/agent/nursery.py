"""Where drivers are born: a light process with everything imported that forks one driver per attempt in milliseconds.

One nursery per interpreter, held by the agent on a socket pair; when the agent goes the nursery goes, the drivers stay.
It has one thread, no event loop, no framework and no user code, so forking it is safe. The upper half of this file is
the agent's side, the lower the nursery itself (`python -m jupyter_elastic.agent.nursery <fd>`). Knows interpreters and
forks; must not know jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
from msgspec import Struct

from jupyter_elastic.agent import driver, pages
from jupyter_elastic.agent.processes import Known, gone, known, myself
from jupyter_elastic.errors import EngineError

READY_TIMEOUT_S = 120.0
"""How long an interpreter may take to import us (cold network disks)."""
MAX_MESSAGE = 64 * 1024
SPARE_DELAY_S = 0.1
"""After a birth the nursery waits so long before it forks the next driver: the new one needs the processor now."""

log = logging.getLogger(__name__)


class Birth(Struct, frozen=True):
    """To the nursery: fork a driver."""

    number: int
    attempt: str
    runtime: str


class Born(Struct, frozen=True):
    """From the nursery (`ready` False) when it forked, and from the driver itself when it listens or won't."""

    number: int
    pid: int
    start: float = 0.0
    ready: bool = False
    problem: str = ""


# --- the agent's side -------------------------------------------------------------------------------------------------


class Nursery:
    """The agent's hold on the nursery of one interpreter. It is started by the first birth, or by `start`."""

    def __init__(self, python: str) -> None:
        self.python = python
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._said: IO[bytes] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Known]] = {}
        self._next = 1

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
            try:
                async with asyncio.timeout(READY_TIMEOUT_S):
                    hello = await asyncio.get_running_loop().sock_recv(ours, MAX_MESSAGE)
            except (OSError, TimeoutError):
                hello = b""
            if not hello:
                raise EngineError(f"{self.python} can't run a job's driver: {self._end()}")
            self._reader = asyncio.create_task(self._listen(ours))

    async def birth(self, attempt: Path, runtime: Path) -> Known | None:
        """Fork a driver for an attempt; its process, or None when the attempt has one already.

        EngineError when it can't be started or gave up before it listened.
        """
        await self.start()
        assert self._socket is not None
        number, self._next = self._next, self._next + 1
        born: asyncio.Future[Known] = asyncio.get_running_loop().create_future()
        self._waiting[number] = born
        try:
            message = msgspec.json.encode(Birth(number, str(attempt), str(runtime)))
            await asyncio.get_running_loop().sock_sendall(self._socket, message)
            return await born
        except _HeldError:
            return None
        except OSError as problem:
            raise EngineError(f"the nursery of drivers is gone: {problem}") from problem
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End the nursery; its drivers go on."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._end()

    def _spawn(self, handle: int) -> subprocess.Popen[bytes]:
        # -P: the folder in which the agent happens to run must not shadow our modules
        return subprocess.Popen(
            [self.python, "-P", "-m", "jupyter_elastic.agent.nursery", str(handle)],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            pass_fds=[handle],
            start_new_session=True,
        )

    async def _listen(self, ours: socket.socket) -> None:
        watches: dict[int, asyncio.Task[None]] = {}
        try:
            while data := await asyncio.get_running_loop().sock_recv(ours, MAX_MESSAGE):
                born = msgspec.json.decode(data, type=Born)
                future = self._waiting.get(born.number)
                if future is None or future.done():
                    continue
                if born.problem == "held":
                    future.set_exception(_HeldError())
                elif born.problem:
                    future.set_exception(EngineError(f"the driver can't start: {born.problem}"))
                elif born.ready:
                    future.set_result((born.pid, born.start))  # it may be over already
                else:
                    watches[born.number] = asyncio.create_task(self._watch(born, future))
        except (OSError, msgspec.DecodeError) as problem:
            log.warning("the nursery of %s broke: %s", self.python, problem)
        for watch in watches.values():
            watch.cancel()
        await asyncio.gather(*watches.values(), return_exceptions=True)
        reason = self._end()
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(EngineError(f"the nursery of drivers ended: {reason}"))

    async def _watch(self, born: Born, future: asyncio.Future[Known]) -> None:
        """A driver that dies before it is ready must not be waited for."""
        with contextlib.suppress(ProcessLookupError):
            await gone(known(born.pid))
        await asyncio.sleep(0.5)  # its last word may still be on the way
        if not future.done():
            future.set_exception(EngineError(f"the driver (process {born.pid}) died before it was ready"))

    def _end(self) -> str:
        """Let go of the process; what it said last."""
        words = ""
        if self._socket is not None:
            self._socket.close()
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
        self._process = self._socket = self._said = self._reader = None
        return words.splitlines()[-1] if words else f"it ended with code {code}"


class _HeldError(Exception):
    """Another driver has the attempt."""


# --- the nursery itself -----------------------------------------------------------------------------------------------


class Spare(NamedTuple):
    """A driver that is forked already and waits to be told its attempt."""

    pid: int
    pipe: socket.socket


def serve(ours: socket.socket) -> None:
    """Give each birth to the driver that waits, then fork the next one, until the agent is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave no zombies; their end is seen by pidfd
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver.preload()
    gc.collect()
    gc.freeze()
    spare = _spare(ours)
    ours.send(b"{}")
    while True:
        if spare is None and not select.select([ours], [], [], SPARE_DELAY_S)[0]:
            spare = _spare(ours)
        data = ours.recv(MAX_MESSAGE)
        if not data:
            return
        birth = msgspec.json.decode(data, type=Birth)
        try:
            pid = (_give(spare, data) if spare else 0) or _give(_fork(ours), data)
            born = Born(birth.number, pid)
        except OSError as problem:
            born = Born(birth.number, 0, problem=f"no process can be made: {problem}")
        spare = None
        ours.send(msgspec.json.encode(born))


def _spare(ours: socket.socket) -> Spare | None:
    try:
        return _fork(ours)
    except OSError:  # tried again when a driver is wanted
        return None


def _give(spare: Spare, birth: bytes) -> int:
    """Hand an attempt to a waiting driver; its pid, or 0 when it is dead."""
    with spare.pipe:
        try:
            spare.pipe.send(birth)
        except OSError:
            return 0
        return spare.pid


def _fork(ours: socket.socket) -> Spare:
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        pid = os.fork()
        if pid == 0:
            mine.close()
            _child(its, ours)
    return Spare(pid, mine)


def _child(pipe: socket.socket, ours: socket.socket) -> None:
    """Wait for an attempt and become its driver; never comes back."""
    code, number = 1, 0
    try:
        os.setsid()
        for name in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(name, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text("elastic-driver", encoding="ascii")
        runner = driver.prepare()
        pages.prefault()
        with pipe:
            data = pipe.recv(MAX_MESSAGE)
        if not data:  # the nursery is gone
            os._exit(0)
        birth = msgspec.json.decode(data, type=Birth)
        number = birth.number
        handle = os.open(Path(birth.attempt) / "driver.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
        code = driver.run(Path(birth.attempt), Path(birth.runtime), runner, _announce(birth, ours))
    except BaseException:
        traceback.print_exc()
        with contextlib.suppress(OSError, ValueError):
            problem = traceback.format_exc(limit=0).strip()
            ours.send(msgspec.json.encode(Born(number, os.getpid(), problem=problem)))
    finally:
        with contextlib.suppress(Exception):
            logging.shutdown()
            sys.stderr.flush()
        os._exit(code)


def _announce(birth: Birth, ours: socket.socket) -> Callable[[str], None]:
    def ready(problem: str) -> None:
        with contextlib.suppress(OSError):  # an agent that is gone finds us by driver.json
            pid, start = myself()
            ours.send(msgspec.json.encode(Born(birth.number, pid, start, ready=not problem, problem=problem)))
        ours.close()

    return ready


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
