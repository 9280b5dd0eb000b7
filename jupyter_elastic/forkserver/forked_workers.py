"""Starts workers for a driver: forked from a forkserver if there is one, else as separate processes.

A worker is a process in its own session with one end of a socket pair; whatever started it, a pidfd tells its death at
once and its exit code follows. Knows processes; must not know process groups or jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from jupyter_elastic.forkserver import fork_client, parents
from jupyter_elastic.forkserver.fork_client import ForkedProcess, ForkServerAddress, ForkServerClient
from jupyter_elastic.platform import paths, processes
from jupyter_elastic.platform.python_path import with_package
from jupyter_elastic.protocol.forkserver_messages import ANSWERS, REQUESTS, Clear
from jupyter_elastic.types.errors import EngineError, ProtocolError

CLEAR_S = 30.0
"""Seconds that a forkserver may take to end what dead workers have left."""
SIZE, LARGEST_ENVIRONMENT = 4, 96 * 1024
"""Bytes: a warm worker first reads the size of its environment, and the environment as JSON. A larger one would not
fit into a socket's buffer: its workers are started cold."""
FRAMEWORKS = ("tensorflow", "torch")
"""Frameworks that a forkserver of workers can import ahead."""

log = logging.getLogger(__name__)


def address(
    python: str, environment: Mapping[str, str], frameworks: tuple[str, ...], only_for: str = ""
) -> ForkServerAddress:
    """Return the forkserver of workers for this interpreter, environment and set of frameworks."""
    imports = tuple(name for name in FRAMEWORKS if name in frameworks)
    environment = {**environment, "OPENBLAS_NUM_THREADS": "1"}  # no thread before the first fork
    return ForkServerAddress(parents.WORKERS, python, environment, imports, only_for)


class WorkerLauncher:
    """Starts workers for one attempt, from a forkserver that is kept for the process `kept_for`, a kernel.

    With `warm=False`, or if the user wants no warm parents, each worker is a separate process. With `only_for` the
    forkserver serves no other user's workers.
    """

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        frameworks: tuple[str, ...],
        *,
        warm: bool,
        kept_for: processes.ProcessId | None = None,
        only_for: str = "",
    ) -> None:
        self._python = python
        self.forkserver = address(python, {**os.environ, **environment}, frameworks, only_for)
        self._warm = warm and parents.wanted()
        self._kept_for = kept_for
        self._client: ForkServerClient | None = None
        self._connecting = asyncio.Lock()

    async def start(self, first: bytes = b"") -> tuple[ForkedProcess, socket.socket]:
        """Start a worker; return it and this process's end of its connection. EngineError when none can be started.

        The worker reads `first` from the connection, without waiting for us; `first` must fit into a socket's buffer.
        """
        environment = json.dumps(with_package(self.forkserver.environment)).encode()
        if self._warm and len(environment) < LARGEST_ENVIRONMENT:
            ours, theirs = _connection(len(environment).to_bytes(SIZE, "big") + environment + first)
            try:
                with theirs:
                    return await (await self._connected()).fork(theirs, self._kept_for), ours
            except (OSError, EngineError, TimeoutError) as problem:
                ours.close()  # if the worker is forked after all, it finds its connection closed and ends
                log.info("no warm worker (%s: %s); starting a cold one", type(problem).__name__, problem)
                self._client = None
        ours, theirs = _connection(first)
        with theirs:
            try:
                return self._start_cold(theirs), ours
            except BaseException:
                ours.close()
                raise

    def close(self) -> None:
        """Disconnect from the forkserver, which lives on."""
        if self._client is not None:
            self._client.close()

    async def _connected(self) -> ForkServerClient:
        async with self._connecting:
            if self._client is None or self._client.lost:
                # A cell without frameworks starts cold in the time that a new forkserver would take.
                self._client = await self.forkserver.connect(start=bool(self.forkserver.imports))
            return self._client

    def _start_cold(self, theirs: socket.socket) -> ForkedProcess:
        try:
            child = subprocess.Popen(
                [self._python, "-P", "-m", "jupyter_elastic.worker.worker", "--fd", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=with_package(self.forkserver.environment),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as problem:
            raise EngineError(f"no worker could be started with {self._python}: {problem}") from problem
        process = ForkedProcess(*processes.identify(child.pid))
        fork_client.started.add(child.pid)

        async def reap() -> None:
            await processes.gone(process.known)
            process.set_code(child.wait())
            fork_client.started.discard(child.pid)
            await _clear()
            process.cleared.set()

        task = asyncio.create_task(reap())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
        return process


_tasks: set[asyncio.Task[None]] = set()
_adopts = False


def adopt() -> None:
    """Let this process end whatever its cold workers leave behind. It must have no children but those started here."""
    global _adopts
    _adopts = True
    processes.adopt_orphans()


async def _clear() -> None:
    while _adopts and (left := processes.children() - fork_client.started):
        known = []
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                known.append(processes.identify(pid))
        await processes.end(known)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - it doesn't wait


async def cleared() -> None:
    """Return when no process of this pool lives that a worker, dead by now, has left.

    For a process that has not had these workers forked; a forkserver that doesn't answer is not waited for long.
    """
    found = parents.found(paths.runtime_dir(), kinds=(parents.WORKERS,))
    await asyncio.gather(*(_cleared(parent.socket) for parent in found if parent.memory))


async def _cleared(path: Path) -> None:
    try:
        async with asyncio.timeout(CLEAR_S):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(REQUESTS.encode(Clear()))
            await ANSWERS.read(reader)
            writer.close()
    except (OSError, TimeoutError, ProtocolError) as problem:
        log.warning("the forkserver at %s doesn't say that it has cleared up: %r", path, problem)


def _connection(first: bytes) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.sendall(first)
    return ours, theirs


_FOLLOW_OPENMP = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_THREADS = (
    "OMP_NUM_THREADS", *_FOLLOW_OPENMP, "NUMEXPR_MAX_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS", "LOKY_MAX_CPU_COUNT", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS",
)  # fmt: skip


def default_threads(environment: Mapping[str, str], *, gpu: bool) -> dict[str, str]:
    """Return thread counts for a worker on one CPU slot, if not chosen by the user; a GPU worker keeps the defaults."""
    if gpu:
        return {}
    chosen = {*environment, *(_FOLLOW_OPENMP if "OMP_NUM_THREADS" in environment else ())}
    if "NUMEXPR_NUM_THREADS" in chosen:
        chosen.add("NUMEXPR_MAX_THREADS")
    return {name: "1" for name in _THREADS if name not in chosen}
