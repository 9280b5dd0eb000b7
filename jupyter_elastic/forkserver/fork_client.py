"""The client of a forkserver: finds it or starts it, has processes forked, and receives their ends.

Knows processes and the forkserver's messages; must not know what the forked processes do.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jupyter_elastic.forkserver import parents
from jupyter_elastic.forkserver.server import newest_source
from jupyter_elastic.platform import paths, private_files, processes
from jupyter_elastic.platform.peer import peer_of
from jupyter_elastic.platform.python_path import with_package
from jupyter_elastic.protocol.forkserver_messages import (
    ANSWERS,
    REQUESTS,
    Answer,
    Cleared,
    Exited,
    Fork,
    Forked,
    ForkRefused,
    Keep,
)
from jupyter_elastic.types.errors import EngineError, ProtocolError

START_S = 180.0
"""Seconds that a forkserver may take to import its modules before its clients do without it."""
KEEP_ALONE_S = 1.0
"""Seconds that a forkserver for one client outlives that client."""
POLL_S = 0.02
"""Seconds between two tries to connect to a forkserver that was started."""
CODE_S = 5.0
"""Seconds to wait for the exit code after a death."""
MODULES = {
    parents.WORKERS: "jupyter_elastic.worker.forked_worker",
    parents.DRIVERS: "jupyter_elastic.driver.forked_driver",
}
"""The module that is run (`python -m ...`) as a forkserver of each kind."""
_READ_BY_FRAMEWORKS = (
    "PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "NUMEXPR_", "TF_", "TF2_", "KERAS_", "XLA_", "TORCH",
    "PYTORCH_", "TRITON_", "HOROVOD_", "CONDA_", "VIRTUAL_ENV", "PATH", "CUDA_HOME", "CUDA_PATH", "HOME", "JAX_",
    "NPY_", "PROTOCOL_BUFFERS_", "LANG", "LC_", "MALLOC_", "GLIBC_",
)  # fmt: skip
"""Prefixes of variables that count at an import: environments that differ in them have different forkservers. A
forkserver of workers has no other variables: one job must not see another's, and each worker gets its own."""


class ForkedProcess:
    """A process of a forkserver, or one that was started alone.

    `code` is the exit code: negative for a signal, None while the process lives or when unknown.
    """

    def __init__(self, pid: int, start_time: float) -> None:
        self.pid = pid
        self.start_time = start_time
        self.code: int | None = None
        self.code_known = asyncio.Event()
        self.cleared = asyncio.Event()
        """Set when the process and all that it started are gone, as far as the process that forked it can tell."""

    @property
    def known(self) -> processes.ProcessId:
        """(pid, start time)."""
        return (self.pid, self.start_time)

    def set_code(self, code: int | None) -> None:
        """Record the exit code; None if it will never be known."""
        self.code = code if self.code is None else self.code
        self.code_known.set()

    @property
    def is_cleared(self) -> bool:
        """True if nothing is left of what the process had started, once it is gone."""
        return self.cleared.is_set() and not has_group(self.pid)

    def send(self, number: int) -> None:
        """Send the process a signal, if it lives."""
        processes.send(self.known, number)

    def stopped(self) -> bool:
        """Return True if a signal has stopped the process."""
        return processes.stopped(self.known)

    async def gone(self) -> None:
        """Return when the process has ended."""
        await processes.gone(self.known)

    async def clear(self) -> None:
        """Kill every process that this process, which is gone, left behind."""
        await self.cleared.wait()
        if has_group(self.pid):  # the process that forked it can't tell
            await processes.end([self.known], 0.5)

    async def ended(self) -> int | None:
        """Return the exit code when the process is gone; None if unknown."""
        await processes.gone(self.known)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CODE_S):
                await self.code_known.wait()
        return self.code


def has_group(pid: int) -> bool:
    """Return True if anything is left of the process group that `pid` led."""
    try:
        os.killpg(pid, 0)
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class ForkServerAddress:
    """A forkserver's address: of drivers or workers (`kind`), for an interpreter and environment, with these imports.

    A forkserver that is `only_for` somebody has no other users, and ends with the process that has started it.
    """

    kind: str
    python: str
    environment: Mapping[str, str]
    imports: tuple[str, ...] = ()
    only_for: str = ""

    @property
    def path(self) -> Path:
        """Path of the forkserver's socket; the lock and the log lie beside it."""
        counted = sorted(self._at_import(_READ_BY_FRAMEWORKS).items())
        text = json.dumps([self.python, our_source(), counted, sorted(self.imports), self.only_for])
        return paths.runtime_dir() / f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.sock"

    def _at_import(self, starts: tuple[str, ...]) -> dict[str, str]:
        return {name: value for name, value in with_package(self.environment).items() if name.startswith(starts)}

    def start(self, kept_for: processes.ProcessId | None = None) -> subprocess.Popen[bytes]:
        """Start the forkserver as a detached process, kept for `kept_for`; it ends if another one has the lock.

        EngineError when the interpreter can't be started.
        """
        command = [self.python, "-P", "-m", MODULES[self.kind], "--socket", str(self.path)]
        if self.only_for:  # the forkserver ends with its starter, however that ends
            kept_for = kept_for or processes.this_process()
            command += ["--keep", str(KEEP_ALONE_S)]
        if kept_for is not None:
            command += ["--kept-for", *map(str, kept_for)]
        if self.imports:
            command += ["--imports", *self.imports]
        with private_files.open_private(self.path.with_suffix(".log"), append=True) as output:
            try:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self._at_import(
                        (*_READ_BY_FRAMEWORKS, "JUPYTER_ELASTIC") if self.kind == parents.WORKERS else ("",)
                    ),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as problem:
                raise EngineError(
                    f"can't start the interpreter {self.python}: {problem.strerror or problem}; its environment was "
                    "moved or removed: submit the job again from a kernel that runs"
                ) from problem

    async def connect(self, *, start: bool) -> ForkServerClient:
        """Return a client of the forkserver; with `start`, start it if none lives. EngineError when none comes."""
        loop = asyncio.get_running_loop()
        until = loop.time() + START_S
        child: subprocess.Popen[bytes] | None = None
        while True:
            connected = self._connected()
            if connected is not None:
                return ForkServerClient(connected)
            if not start:
                raise EngineError(f"no forkserver of {self.kind} runs")
            if child is None or child.poll() is not None:
                if loop.time() > until or (child is not None and child.returncode != 0):
                    raise EngineError(f"{self.python} can't run the forkserver of {self.kind}: {self._last_line()}")
                child = await asyncio.to_thread(self.start)
                started.add(child.pid)
            await asyncio.sleep(POLL_S)

    def warm_up(self) -> bool:
        """Start the forkserver for later, kept for this process, if none lives; return True if it was started.

        Does nothing if the user wants no warm parents (`$JUPYTER_ELASTIC_WARM=0`). EngineError when the interpreter
        can't be started.
        """
        if not parents.wanted():
            return False
        me = processes.identify(os.getpid())
        connected = self._connected()
        if connected is not None:
            with connected:
                connected.sendall(REQUESTS.encode(Keep(me)))
            return False
        child = self.start(me)
        threading.Thread(target=child.wait, name="reaper of a forkserver", daemon=True).start()
        return True

    def _connected(self) -> socket.socket | None:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.connect(str(self.path))
        except OSError:
            connected.close()
            return None
        return connected

    def _last_line(self) -> str:
        log = self.path.with_suffix(".log")
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return f"{lines[-1]} (see {log})" if lines else "it ended without a word"


started: set[int] = set()
"""Pids of the forkservers and cold workers that this process has started."""


@functools.cache
def our_source() -> int:
    """Return the version of the package's source in this process and all that is forked from it."""
    return newest_source()


class ForkServerClient:
    """A connection to a forkserver. `fork` raises EngineError if it can't fork or is gone, TimeoutError if it hangs."""

    def __init__(self, connected: socket.socket) -> None:
        self.lost = False
        self._socket = connected
        self._answers: deque[asyncio.Future[ForkedProcess]] = deque()
        """Answers to the pending requests; the forkserver answers them in order."""
        self._children: dict[int, ForkedProcess] = {}
        self._listening = asyncio.create_task(self._listen())

    async def fork(self, theirs: socket.socket, kept_for: processes.ProcessId | None = None) -> ForkedProcess:
        """Fork a process that has `theirs`."""
        if self.lost:
            raise EngineError("the forkserver is gone")
        if processes.stopped_now(pid := peer_of(self._socket).pid):  # its socket would still take the request
            raise EngineError(f"the forkserver (process {pid}) is stopped by a signal; kill -CONT {pid} lets it go on")
        answer: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        # Past asyncio, which can't send descriptors: one small message, which a UNIX socket takes at once.
        socket.send_fds(self._socket, [REQUESTS.encode(Fork(kept_for))], [theirs.fileno()])
        async with asyncio.timeout(START_S):
            return await answer

    def close(self) -> None:
        """Disconnect."""
        self._listening.cancel()
        self._socket.close()

    async def _listen(self) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_unix_connection(sock=self._socket.dup())
            while (answer := await ANSWERS.read(reader)) is not None:
                self._handle(answer)
        except (OSError, ProtocolError):
            pass  # the connection is of no use any more, as at its end
        finally:
            if writer is not None:
                writer.close()
            self.lost = True
            for waiting in self._answers:
                if not waiting.done():
                    waiting.set_exception(EngineError("the forkserver is gone"))
            for process in self._children.values():
                process.set_code(None)
                process.cleared.set()

    def _handle(self, answer: Answer) -> None:
        match answer:
            case Forked(pid, start_time):
                process = self._children[pid] = ForkedProcess(pid, start_time)
                waiting = self._answers.popleft()
                if not waiting.done():
                    waiting.set_result(process)
            case ForkRefused(problem):
                waiting = self._answers.popleft()
                if not waiting.done():
                    waiting.set_exception(EngineError(f"the forkserver can't fork: {problem}"))
            case Exited(pid, code, cleared) if pid in self._children:
                self._children[pid].set_code(code)
                if cleared:
                    self._children.pop(pid).cleared.set()
            case Cleared(pid) if pid in self._children:
                self._children.pop(pid).cleared.set()
