"""A cell's driver and its session: workers that stay when the cell is over, and the next cell's driver finds again.

Nobody holds them between cells: each listens in the session's folder, and ends by itself when nothing comes. The first
cell has them started as any cell has; a later one only connects. Knows the session's folder and workers' processes;
must not know groups or the daemon.
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

from jupyter_elastic.driver.hands import Hand, WorkerProcess
from jupyter_elastic.forkserver import workers
from jupyter_elastic.forkserver.client import ForkedProcess
from jupyter_elastic.jobfiles import sessions
from jupyter_elastic.jobfiles.sessions import Session, SessionFolder, SessionRequest
from jupyter_elastic.platform import processes
from jupyter_elastic.platform.private_files import open_private
from jupyter_elastic.types.errors import EngineError

BEGUN = "session-begun"
"""In the job's folder: its cell has been given to the session's workers."""
HELLO_S = 15.0
"""How long a worker may take to notice that a cell has come for it."""


class SessionWorker:
    """A worker of a session as a `WorkerProcess`: for its cell's driver it has ended when it is parked, too."""

    def __init__(self, process: WorkerProcess) -> None:
        self._process = process
        self._parked = asyncio.Event()

    @property
    def parked(self) -> bool:
        """Whether it lives on, for the session's next cell."""
        return self._parked.is_set()

    def park(self) -> None:
        """Its part in this cell is over."""
        self._parked.set()

    @property
    def known(self) -> processes.ProcessId | None:
        """(pid, start time)."""
        return self._process.known

    @property
    def is_cleared(self) -> bool:
        """What a parked worker has started is its own affair still."""
        return self.parked or self._process.is_cleared

    def send(self, number: int) -> None:
        """Signal it, if it lives and is not parked."""
        if not self.parked:
            self._process.send(number)

    def stopped(self) -> bool:
        """Whether a signal is known to have stopped it."""
        return self._process.stopped()

    async def gone(self) -> None:
        """Come back when it has ended or is parked."""
        ends = [asyncio.ensure_future(self._process.gone()), asyncio.ensure_future(self._parked.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def ended(self) -> int | None:
        """`gone`, with its exit code; 0 when it is parked, None when nobody knows it."""
        await self.gone()
        return 0 if self.parked else await self._process.ended()

    async def clear(self) -> None:
        """See to it that nothing lives of what it had started, if it is gone."""
        if not self.parked:
            await self._process.clear()


class CellOfSession:
    """One cell's use of its session.

    Args:
        request: What the cell asks for.
        job: The job's number.
        folder: The job's folder.
    """

    def __init__(self, request: SessionRequest, job: int, folder: Path) -> None:
        self.folder = SessionFolder(request.name)
        self.kept: set[processes.ProcessId] = set()
        """Processes of its workers, which the end of this attempt is not to end."""
        self._request = request
        self._job = job
        self._job_folder = folder
        self._new = False
        self._started: set[int] = set()
        self._lost = ""
        self.group = ""
        """The group that its workers are to form again."""
        self.began = False
        """A worker has begun to run the cell."""

    def open(self, *, size: int, engine: str, python: str, kernel: processes.ProcessId | None) -> None:
        """Find the session, or make it. EngineError when it has another size, engine or interpreter, or is lost."""
        begun = self._job_folder / BEGUN
        if begun.exists():
            raise EngineError(
                "the cell was begun by an attempt that was lost, and a session's cell is never run twice; what it had "
                "done to the variables is unknown: look at them, and run it again"
            )
        try:
            self._open(size, engine, python, kernel)
            open_private(begun).close()
        except OSError as problem:
            raise EngineError(f"the session {self.folder.name!r} can't be written down: {problem}") from problem

    def _open(self, size: int, engine: str, python: str, kernel: processes.ProcessId | None) -> None:
        known = self.folder.read()
        if known is not None and not self.folder.over(known):
            whole = len(self.folder.members(known)) == known.size
            if whole:
                if problem := sessions.differs(known, size, engine, python):
                    raise EngineError(problem)
                self.group = self.folder.group()
                return
            if not self._request.respawn:
                sessions.end_left(self.folder, known)
                raise EngineError(sessions.gone(self.folder))
        if known is not None:
            sessions.end_left(self.folder, known)
        self._new = True
        self.folder.make(
            Session(
                name=self.folder.name,
                size=size,
                engine=engine,
                python=python,
                job=self._job,
                made_at=time.time(),
                kernel=None if self._request.outlive else kernel,
                idle_s=self._request.idle_s,
                least_free=self._request.least_free,
            )
        )

    def hand(self, rank: int, launcher: Hand) -> Hand:
        """Who gives this cell the worker of this rank."""
        return _SessionHand(self, rank, launcher)

    async def start(self, rank: int, launcher: Hand, first: bytes) -> tuple[SessionWorker, socket.socket]:
        """The worker of this rank: a new one for a session's first cell, else the one that is there."""
        if rank in self._started:
            raise EngineError(f"rank {rank} of the session {self.folder.name!r} is gone, and nobody can take its place")
        self._started.add(rank)
        if self._new:
            process, connected = await launcher.start(first)
        else:
            process, connected = await self._find(rank, first)
        return SessionWorker(process), connected

    async def _find(self, rank: int, first: bytes) -> tuple[WorkerProcess, socket.socket]:
        member = self.folder.member(rank)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HELLO_S):
                await loop.sock_connect(connected, str(self.folder.socket(rank)))
                if member is None or not await loop.sock_recv(connected, 1):
                    raise ConnectionError("it has left")
                await loop.sock_sendall(connected, first)
        except (OSError, TimeoutError) as problem:
            connected.close()
            self.lose(f"rank {rank} does not answer ({type(problem).__name__})")
            raise EngineError(sessions.gone(self.folder)) from problem
        return _Found(*member.known), connected

    def parked(self, worker: WorkerProcess | None) -> None:
        """This worker stays."""
        if isinstance(worker, SessionWorker):
            worker.park()
            if worker.known is not None:
                self.kept.add(worker.known)

    def lose(self, why: str) -> None:
        """A worker is gone, and what it knew with it."""
        self._lost = self._lost or why
        self.folder.end(why)

    def close(self) -> str:
        """The cell is over; what is to be said of a session that was lost in it, empty when it goes on.

        The workers that are left of a lost one are ended: no cell could use them.
        """
        known = self.folder.read()
        if not self._lost or known is None:
            return ""
        sessions.end_left(self.folder, known)
        if self._new and not self.began:
            self.folder.remove()
            return ""
        return sessions.gone(self.folder)


class _SessionHand:
    """The worker of one rank as a `Hand`."""

    def __init__(self, cell: CellOfSession, rank: int, launcher: Hand) -> None:
        self._cell, self._rank, self._launcher = cell, rank, launcher

    async def start(self, first: bytes) -> tuple[SessionWorker, socket.socket]:
        return await self._cell.start(self._rank, self._launcher, first)

    def close(self) -> None:
        pass


class _Found(ForkedProcess):
    """A worker that an earlier cell's driver has had started: how it leaves, nobody tells this one."""

    def __init__(self, pid: int, start_time: float) -> None:
        super().__init__(pid, start_time)
        self.set_code(None)

    async def clear(self) -> None:
        await workers.cleared()
        self.cleared.set()
        await super().clear()
