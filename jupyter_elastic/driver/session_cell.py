"""Connects a cell's driver to its session: workers outlive the cell, and the next cell's driver finds them again.

No process holds the workers between cells: each listens in the session's folder, and ends itself when no cell comes.
The first cell starts them as any cell does; a later one only connects. Knows the session's folder and workers'
processes; must not know groups or the daemon.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from jupyter_elastic.forkserver import forked_workers
from jupyter_elastic.forkserver.fork_client import ForkedProcess
from jupyter_elastic.hosts.interface import WorkerHost, WorkerProcess
from jupyter_elastic.jobfiles import session_limits, sessions
from jupyter_elastic.jobfiles.sessions import Session, SessionFolder, SessionRequest
from jupyter_elastic.platform import processes
from jupyter_elastic.platform.private_files import open_private
from jupyter_elastic.types import SlotId
from jupyter_elastic.types.errors import EngineError

BEGUN = "session-begun"
"""File in the job's folder: the cell has been given to the session's workers."""
HELLO_S = 15.0
"""Seconds that a worker may take to notice a cell's connection."""

log = logging.getLogger(__name__)


class SessionWorker:
    """A worker of a session as a `WorkerProcess`: for its cell's driver a suspended worker has ended, too."""

    def __init__(self, process: WorkerProcess) -> None:
        self._process = process
        self._parked = asyncio.Event()
        self.parking = False
        """True while the worker copies its memory off its device, for seconds: no signal may end it then."""

    @property
    def parked(self) -> bool:
        """True if the worker lives on, for the session's next cell."""
        return self._parked.is_set()

    def park(self) -> None:
        """Record that the worker's part in this cell is over."""
        self._parked.set()

    @property
    def known(self) -> processes.ProcessId | None:
        """(pid, start time)."""
        return self._process.known

    @property
    def is_cleared(self) -> bool:
        """True once the worker is suspended, too: it keeps the processes that it has started."""
        return self.parked or self._process.is_cleared

    def send(self, number: int) -> None:
        """Send the worker a signal, if it lives and is neither suspended nor about to be."""
        if not (self.parked or self.parking):
            self._process.send(number)

    def stopped(self) -> bool:
        """Return True if a signal is known to have stopped the worker."""
        return self._process.stopped()

    async def gone(self) -> None:
        """Return when the worker has ended or is suspended."""
        ends = [asyncio.ensure_future(self._process.gone()), asyncio.ensure_future(self._parked.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def ended(self) -> int | None:
        """Wait like `gone`; return the exit code: 0 if the worker is suspended, None if unknown."""
        await self.gone()
        return 0 if self.parked else await self._process.ended()

    async def clear(self) -> None:
        """Kill every process that the worker left behind, if it is gone."""
        if not self.parked:
            await self._process.clear()


class Stays(NamedTuple):
    """A worker that lives on after the cell."""

    rank: int
    member_id: int
    slot: SlotId
    pinned: str
    """Reason why the worker's memory can't leave the slot's device; empty if it has left."""


class CellOfSession:
    """One cell's use of its session.

    Args:
        request: The cell's request.
        job: The job's number.
        folder: The job's folder.
    """

    def __init__(self, request: SessionRequest, job: int, folder: Path) -> None:
        self.folder = SessionFolder(request.name)
        self.kept: set[processes.ProcessId] = set()
        """Processes of the session's workers, which the end of this attempt must not end."""
        self._request = request
        self._job = job
        self._job_folder = folder
        self._session: Session
        self._new = False
        self._given: list[int] = []
        """Member ids of the workers that this cell was given, in that order: first those that were there."""
        self._staying: list[Stays] = []
        self._lost = ""
        self.newcomers: WorkerHost | None = None
        """Starts workers that have imported what the session has, which the cell's text need not name."""
        self.group = ""
        """The group that the session's workers are to form again."""
        self.began = False
        """True when a worker has begun to run the cell."""

    def open(
        self, *, size: int, sizes: tuple[int, int], engine: str, python: str, kernel: processes.ProcessId | None
    ) -> None:
        """Find the session, or make it, for a cell with `size` slots, whose range is `sizes`.

        EngineError when the session has another size, engine or interpreter, or is lost.
        """
        begun = self._job_folder / BEGUN
        if begun.exists():
            raise EngineError(
                "the cell was begun by an attempt that was lost, and a session's cell is never run twice; what it had "
                "done to the variables is unknown: look at them, and run it again"
            )
        try:
            self._session = self._open(size, sizes, engine, python, kernel)
            open_private(begun).close()
        except OSError as problem:
            raise EngineError(f"the session {self.folder.name!r} can't be written down: {problem}") from problem

    def _open(
        self, size: int, sizes: tuple[int, int], engine: str, python: str, kernel: processes.ProcessId | None
    ) -> Session:
        known = self.folder.read()
        if known is not None and not self.folder.over(known):
            whole = len(self.folder.members(known)) == known.size
            if whole:
                asked = known.range if known.elastic and known.low <= size <= known.high else sizes
                if problem := sessions.differs(known, asked, engine, python):
                    raise EngineError(problem)
                if known.size != size:
                    raise EngineError(
                        f"the session {known.name!r} has {known.size} workers now, and this cell was queued for "
                        f"{size}: run it again"
                    )
                self.group = self.folder.group()
                return known
            if not self._request.respawn:
                dead = [str(rank) for rank, member_id in enumerate(known.places) if not self.folder.lives(member_id)]
                self.folder.end(f"rank {' and '.join(dead)} had died between two cells")
                sessions.end_left(self.folder, known)
                raise EngineError(sessions.gone(self.folder))
        if problem := session_limits.too_many(self.folder):
            raise EngineError(problem)
        if known is not None:
            sessions.end_left(self.folder, known)
        self._new = True
        low, high = sizes
        session = Session(
            name=self.folder.name,
            size=size,
            low=low,
            high=high,
            engine=engine,
            python=python,
            job=self._job,
            made_at=time.time(),
            kernel=None if self._request.outlive else kernel,
            idle_s=self._request.idle_s,
            least_free=self._request.least_free,
            pin_s=self._request.pin_s,
        )
        self.folder.make(session)
        return session

    @property
    def grows(self) -> bool:
        """True if the session may have other workers at the end of the cell, if they can get what they need."""
        return self._session.elastic and not self._request.ranks

    @property
    def grows_at_once(self) -> bool:
        """True if joining workers need nothing: they run the session's first cell, as its other workers do."""
        return self.grows and self._new

    def take_member_id(self) -> tuple[int, bool]:
        """Return the next worker's member id, and True if the worker joins others that have variables."""
        places = self._session.places
        count = len(self._given)
        late = count >= len(places)
        member_id = max((*places, *self._given), default=-1) + 1 if late else places[count]
        self._given.append(member_id)
        return member_id, late and not self._new

    def worker_host(self, member_id: int, launcher: WorkerHost) -> WorkerHost:
        """Return the launcher of the worker with this member id."""
        return _SessionHand(self, member_id, launcher)

    async def start(self, member_id: int, launcher: WorkerHost, first: bytes) -> tuple[SessionWorker, socket.socket]:
        """Return the worker with this member id: the existing one, else a new one."""
        if not self._new and member_id in self._session.places:
            process, connected = await self._find(member_id, first)
        else:
            process, connected = await (self.newcomers or launcher).start(first)
        return SessionWorker(process), connected

    async def _find(self, member_id: int, first: bytes) -> tuple[WorkerProcess, socket.socket]:
        member, rank = self.folder.member(member_id), self._session.places.index(member_id)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HELLO_S):
                await loop.sock_connect(connected, str(self.folder.socket(member_id)))
                if member is None or not await loop.sock_recv(connected, 1):
                    raise ConnectionError("it has left")
                await loop.sock_sendall(connected, first)
        except (OSError, TimeoutError) as problem:
            connected.close()
            self.lose(f"rank {rank} does not answer ({type(problem).__name__})")
            raise EngineError(sessions.gone(self.folder)) from problem
        return _Found(*member.known), connected

    def parked(self, worker: WorkerProcess | None, stays: Stays) -> None:
        """Record that this worker stays."""
        if isinstance(worker, SessionWorker):
            worker.park()
            self._staying.append(stays)
            if worker.known is not None:
                self.kept.add(worker.known)

    def pins(self) -> dict[str, Any]:
        """Return the retained slots, by rank, as an `ExitReported` has them; empty if all memory left them.

        If one worker's memory can't leave, the session retains all slots: with fewer, no cell of it could begin.
        """
        why = next((stays.pinned for stays in self._staying if stays.pinned), "")
        if not why or self._lost:
            return {}
        slots = tuple(stays.slot for stays in sorted(self._staying))
        return {"pinned": slots, "pinned_why": why, "pinned_s": self._session.pin_s}

    def lose(self, why: str) -> None:
        """Record that a worker is gone, and its variables with it."""
        self._lost = self._lost or why
        self.folder.end(why)

    def close(self) -> str:
        """End the cell's use of the session; return the error if the session was lost in it, else empty.

        The remaining workers of a lost session are ended: no cell could use them.
        """
        if self.newcomers is not None:
            self.newcomers.close()
        known = self.folder.read()
        if known is None:
            return ""
        member_ids = tuple(stays.member_id for stays in sorted(self._staying))
        if not self._lost and member_ids != known.places and self._session.elastic:
            try:
                self.folder.rewrite(replace(known, size=len(member_ids), member_ids=member_ids))
            except OSError as problem:
                log.warning("the session's workers can't be written down: %s", problem)
                self.lose(f"its new size can't be written down: {problem}")
        if not self._lost:
            return ""
        sessions.end_left(self.folder, known)
        if self._new and not self.began:
            self.folder.remove()
            return ""
        return sessions.gone(self.folder)


class _SessionHand:
    """A `WorkerHost` that gives one worker of a session."""

    def __init__(self, cell: CellOfSession, member_id: int, launcher: WorkerHost) -> None:
        self._cell, self._member_id, self._launcher = cell, member_id, launcher

    async def start(self, first: bytes) -> tuple[SessionWorker, socket.socket]:
        return await self._cell.start(self._member_id, self._launcher, first)

    def close(self) -> None:
        pass


class _Found(ForkedProcess):
    """A worker that an earlier cell's driver has started; this driver can't learn its exit code."""

    def __init__(self, pid: int, start_time: float) -> None:
        super().__init__(pid, start_time)
        self.set_code(None)

    async def clear(self) -> None:
        await forked_workers.cleared()
        self.cleared.set()
        await super().clear()
