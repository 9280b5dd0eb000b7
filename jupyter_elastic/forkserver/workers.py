"""Getting worker processes: forked from the warm pool where there is one, else started cold.

The driver's side of `pool`. A worker is a process in its own session with one end of a socket pair; whatever started
it, its death is seen by a pidfd at once and its exit code follows. Knows processes; must not know rings or jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import os
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from jupyter_elastic.errors import EngineError
from jupyter_elastic.forkserver import parents
from jupyter_elastic.forkserver.server import FRAMEWORKS, Request, newest_source
from jupyter_elastic.platform import paths, private_files, processes
from jupyter_elastic.platform.python_path import with_package

START_S = 180.0
"""How long a pool may take to import its frameworks before its clients do without it."""
CLEAR_S = 30.0
"""How long a pool may take to end what dead workers have left."""
CODE_S = 5.0
"""How long after a death its exit code is waited for."""
_READ_BY_FRAMEWORKS = (
    "PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "NUMEXPR_", "TF_", "TF2_", "KERAS_", "XLA_", "TORCH_",
    "PYTORCH_", "HOROVOD_", "CONDA_", "VIRTUAL_ENV", "PATH", "CUDA_HOME", "CUDA_PATH", "HOME", "JAX_",
)  # fmt: skip
"""Starts of variables that count when a framework is imported: pools that differ in them are different pools."""

log = logging.getLogger(__name__)


class Process:
    """A worker's process. `code` is what it left with: negative for a signal, None while it lives or when unknown."""

    def __init__(self, pid: int, start_time: float) -> None:
        self.pid = pid
        self.start_time = start_time
        self.code: int | None = None
        self.code_known = asyncio.Event()
        self.cleared = asyncio.Event()
        """It is gone, and so is all that it started, as far as whoever forked it can tell."""

    @property
    def known(self) -> processes.Known:
        """(pid, start time)."""
        return (self.pid, self.start_time)

    def set_code(self, code: int | None) -> None:
        """The exit code is known, or will never be."""
        self.code = code if self.code is None else self.code
        self.code_known.set()

    async def ended(self) -> int | None:
        """Come back when the process is gone, with its exit code; None when nobody knows it."""
        await processes.gone(self.known)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CODE_S):
                await self.code_known.wait()
        return self.code


class Spawner:
    """Starts workers for one attempt. The pool that they come from is kept for the process `kept_for`, a kernel."""

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        frameworks: tuple[str, ...],
        *,
        warm: bool,
        kept_for: processes.Known | None = None,
    ) -> None:
        self._python = python
        self._environment = {**os.environ, **environment}
        self._frameworks = tuple(name for name in FRAMEWORKS if name in frameworks)
        self._warm = warm and parents.wanted()
        self._kept_for = kept_for
        self._client: PoolClient | None = None
        self._connecting = asyncio.Lock()

    async def start(self, first: bytes = b"") -> tuple[Process, socket.socket]:
        """A worker, and our end of its pipe. EngineError when none can be started.

        `first` is what it finds in its pipe, short enough for a socket's buffer: it need not wait until we know it.
        """
        if self._warm:
            ours, theirs = _pipe(first)
            try:
                with theirs:
                    return await (await self._pool()).fork(theirs, self._kept_for), ours
            except (OSError, EngineError, TimeoutError) as problem:
                ours.close()  # should the pool fork after all, that worker finds its pipe closed and ends
                log.info("no warm worker (%s: %s); starting a cold one", type(problem).__name__, problem)
                self._client = None
        ours, theirs = _pipe(first)
        with theirs:
            try:
                return self._start_cold(theirs), ours
            except BaseException:
                ours.close()
                raise

    def close(self) -> None:
        """Let the pool go; it lives on."""
        if self._client is not None:
            self._client.close()

    async def _pool(self) -> PoolClient:
        async with self._connecting:
            if self._client is None or self._client.lost:
                path = socket_of(self._python, self._environment, self._frameworks)
                # A cell without frameworks starts cold in the time that a new pool would take.
                self._client = await connect(
                    path, self._python, self._environment, self._frameworks, start=bool(self._frameworks)
                )
            return self._client

    def _start_cold(self, theirs: socket.socket) -> Process:
        try:
            child = subprocess.Popen(
                [self._python, "-P", "-m", "jupyter_elastic.worker.worker", "--fd", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=with_package(self._environment),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as problem:
            raise EngineError(f"no worker could be started with {self._python}: {problem}") from problem
        process = Process(*processes.known(child.pid))
        _started.add(child.pid)

        async def reap() -> None:
            await processes.gone(process.known)
            process.set_code(child.wait())
            _started.discard(child.pid)
            await _clear()
            process.cleared.set()

        _keep(asyncio.create_task(reap()))
        return process


_started: set[int] = set()
"""Pids of children that this process has started here."""
_adopts = False


def adopt() -> None:
    """Let this process end whatever its cold workers leave behind. It must have no children but those started here."""
    global _adopts
    _adopts = True
    processes.adopt_orphans()


async def _clear() -> None:
    while _adopts and (left := processes.children() - _started):
        known = []
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                known.append(processes.known(pid))
        await processes.end(known)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - it doesn't wait


async def cleared() -> None:
    """Come back when nothing lives in this pool that workers have left which are dead by now.

    For who has not had these workers forked; a warm parent that doesn't answer is not waited for long.
    """
    served = [parent.socket for parent in parents.found(paths.runtime_dir()) if parent.memory]
    await asyncio.gather(*(_cleared(path) for path in served))


async def _cleared(path: Path) -> None:
    try:
        async with asyncio.timeout(CLEAR_S):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(_request("clear"))
            await reader.readline()
            writer.close()
    except (OSError, TimeoutError) as problem:
        log.warning("the warm parent at %s doesn't say that it has cleared up: %r", path, problem)


def _pipe(first: bytes) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.sendall(first)
    return ours, theirs


class PoolClient:
    """A connection to a warm pool."""

    def __init__(self, connected: socket.socket) -> None:
        self.lost = False
        self._socket = connected
        self._answers: deque[asyncio.Future[Process]] = deque()
        """Of the requests that are under way; the pool answers in their order."""
        self._children: dict[int, Process] = {}
        self._listening = asyncio.create_task(self._listen())

    async def fork(self, theirs: socket.socket, kept_for: processes.Known | None = None) -> Process:
        """Fork a worker that has `theirs`. EngineError when the pool can't or is gone; TimeoutError when it hangs."""
        if self.lost:
            raise EngineError("the warm pool is gone")
        answer: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        # Past asyncio, which can't send descriptors: one small message, which a UNIX socket takes at once.
        socket.send_fds(self._socket, [_request("fork", kept_for)], [theirs.fileno()])
        async with asyncio.timeout(START_S):
            return await answer

    def close(self) -> None:
        """Hang up."""
        self._listening.cancel()
        self._socket.close()

    async def _listen(self) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_unix_connection(sock=self._socket.dup())
            while line := await reader.readline():
                self._hear(json.loads(line))
        except OSError:
            pass  # the pool is gone, as at its end
        finally:
            if writer is not None:
                writer.close()
            self.lost = True
            for answer in self._answers:
                if not answer.done():
                    answer.set_exception(EngineError("the warm pool is gone"))
            for process in self._children.values():
                process.set_code(None)
                process.cleared.set()

    def _hear(self, words: dict[str, object]) -> None:
        if words["k"] in {"exit", "cleared"}:
            process = self._children.get(int(str(words["pid"])))
            if process is not None and words["k"] == "exit":
                process.set_code(int(str(words["code"])))
            if process is not None and words.get("cleared", True):
                process.cleared.set()
                del self._children[process.pid]
            return
        answer = self._answers.popleft()
        if words["k"] == "forked":
            process = Process(int(str(words["pid"])), float(str(words["start_time"])))
            self._children[process.pid] = process
            if not answer.done():
                answer.set_result(process)
        elif not answer.done():
            answer.set_exception(EngineError(f"the warm pool can't fork: {words.get('message')}"))


async def connect(
    path: Path, python: str, environment: Mapping[str, str], frameworks: tuple[str, ...], *, start: bool
) -> PoolClient:
    """A client of the pool at `path`; with `start`, one is started where none lives. EngineError when none comes."""
    loop = asyncio.get_running_loop()
    until = loop.time() + START_S
    child: subprocess.Popen[bytes] | None = None
    while True:
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            raw.connect(str(path))
        except OSError:
            raw.close()
        else:
            return PoolClient(raw)
        if not start:
            raise EngineError("no pool is warm")
        if child is None or child.poll() is not None:
            if loop.time() > until or (child is not None and child.returncode != 0):
                raise EngineError(f"the warm pool could not be started; see {path.with_suffix('.log')}")
            child = start_pool(path, python, environment, frameworks)
        await asyncio.sleep(0.02)


def _request(k: Literal["fork", "keep", "clear"], kept_for: processes.Known | None = None) -> bytes:
    return msgspec.json.encode(Request(k, kept_for)) + b"\n"


def start_pool(
    path: Path,
    python: str,
    environment: Mapping[str, str],
    frameworks: tuple[str, ...],
    kept_for: processes.Known | None = None,
) -> subprocess.Popen[bytes]:
    """Start a pool as a detached process; it ends by itself when another one has the lock."""
    command = [python, "-P", "-m", "jupyter_elastic.forkserver.server", "--socket", str(path)]
    if kept_for is not None:
        command += ["--kept-for", *map(str, kept_for)]
    with private_files.open_private(path.with_suffix(".log"), append=True) as output:
        child = subprocess.Popen(
            [*command, "--frameworks", *frameworks],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**with_package(environment), "OPENBLAS_NUM_THREADS": "1"},  # no thread before the first fork
            cwd="/",
            start_new_session=True,
        )
    _started.add(child.pid)
    return child


def warm_up(python: str, environment: Mapping[str, str], frameworks: tuple[str, ...]) -> bool:
    """Start a pool for later, if none lives; whether one was started. Comes back at once. It is kept for this process.

    Not when the user doesn't want any (`$JUPYTER_ELASTIC_WARM=0`).
    """
    if not parents.wanted():
        return False
    me = processes.known(os.getpid())
    environment = {**os.environ, **environment}
    path = socket_of(python, environment, frameworks)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
            probe.sendall(_request("keep", me))
        except OSError:
            wanted = tuple(name for name in FRAMEWORKS if name in frameworks)
            pool = start_pool(path, python, environment, wanted, me)
            threading.Thread(target=pool.wait, name="reaper of a warm pool", daemon=True).start()
            return True
    return False


@functools.cache
def our_source() -> int:
    """Which version of the package this process, and what is forked from it, speaks for."""
    return newest_source()


def socket_of(python: str, environment: Mapping[str, str], frameworks: tuple[str, ...]) -> Path:
    """The socket of the pool for this interpreter, environment and set of frameworks."""
    counted = sorted((name, value) for name, value in environment.items() if name.startswith(_READ_BY_FRAMEWORKS))
    text = json.dumps([python, our_source(), counted, sorted(frameworks)])
    return paths.runtime_dir() / f"pool-{hashlib.sha256(text.encode()).hexdigest()[:12]}.sock"


_tasks: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    """Hold a task until it is done."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def default_threads(environment: Mapping[str, str], *, gpu: bool) -> dict[str, str]:
    """Thread counts for a worker on one CPU slot, where nobody has chosen; a GPU worker keeps the library's own."""
    if gpu:
        return {}
    wanted = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    return {name: value for name, value in wanted.items() if name not in environment}
