"""Starts an attempt's worker processes, carries messages to and from them, and ends them with all that they started.

Knows nothing of ranks, groups or failures: the `Owner` learns what happens to a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from jupyter_elastic.hosts.interface import WorkerHost, WorkerProcess
from jupyter_elastic.platform import processes
from jupyter_elastic.platform.lossless import open_lossless
from jupyter_elastic.protocol.worker_messages import (
    FROM_WORKER,
    TO_WORKER,
    FromWorker,
    Parked,
    StackReport,
    Start,
    ToWorker,
)
from jupyter_elastic.types import SlotId
from jupyter_elastic.types.errors import ElasticError, ProtocolError

LAST_MESSAGES_S = 1.0
"""Seconds for which a dead worker's stream is still read."""

KillSequence: TypeAlias = tuple[tuple[signal.Signals, float], ...]
"""A kill sequence: signals, each with the seconds to wait after it."""
CANCEL: KillSequence = ((signal.SIGINT, 1.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 0.0))
INTERRUPT: KillSequence = ((signal.SIGINT, 5.0), (signal.SIGTERM, 1.0), (signal.SIGKILL, 0.0))
"""The kill sequence for the workers of a session, which are to live on with their variables."""
FAIL: KillSequence = ((signal.SIGTERM, 0.5), (signal.SIGKILL, 0.0))
RAISED: KillSequence = ((signal.SIGTERM, 7.0), (signal.SIGKILL, 0.0))
"""`FAIL` after a failed cell, whose worker may take `worker.leaving.LIMIT_S` for its end; others end at once."""
KILL: KillSequence = ((signal.SIGKILL, 0.0),)


@dataclass
class AttemptWorker:
    """A worker as its engine sees it."""

    name: str
    slot: SlotId
    rank: int
    local_rank: int = 0
    """The worker's number on its host, for its whole life; no other living worker there has it."""
    member_id: int = 0
    """Member id of a session's worker: the number under which the session's folder knows it."""
    late: bool = False
    """True if the worker joined a session whose other workers had variables."""
    process: WorkerProcess | None = None
    writer: asyncio.StreamWriter | None = None
    running: bool = False
    done: bool = False
    terminating: bool = False
    """True if the worker is to be ended as soon as it has started."""
    terminated_by: signal.Signals = signal.SIGKILL
    waiting_since: float = 0.0
    """Time at which the worker last came to a rendezvous."""
    was_member: bool = False
    newcomer: bool = False
    """True if the worker's output is kept separate until it has joined."""
    stack: StackReport | None = None
    """The worker's stack at the last request."""
    unanswered: int = 0
    """Number of requests for a stack since the last answer."""
    stack_file: int = -1
    """The worker's file descriptor into which `stacks.DUMP` has its stack written."""
    stopped_since: float | None = None
    """Time since which the worker was seen stopped by a signal, by the observer's clock; None while it was not."""
    failed: str = ""
    """Failure of the worker's cell, after which the others went on; empty: none."""
    killed_because: str = ""
    """Reason why the driver has killed the worker, as a cause of death; empty: it has not."""


class Owner(Protocol):
    """Receives the events of workers."""

    def start_failed(self, member: AttemptWorker, problem: ElasticError) -> None:
        """Handle a process that could not be started; the member is gone."""
        ...

    def received(self, member: AttemptWorker, message: FromWorker) -> None:
        """Handle a worker's message."""
        ...

    def parked(self, member: AttemptWorker, pinned: str) -> None:
        """Handle a worker whose part in the cell is over, and which stays for its session: its stream ends now.

        `pinned`: why its slot is to be retained, as in `Parked`.
        """
        ...

    def unreadable(self, member: AttemptWorker, problem: ProtocolError) -> None:
        """Handle a worker that has sent an invalid message, and is killed."""
        ...

    def left(self, member: AttemptWorker, code: int | None) -> None:
        """Handle a worker whose process is gone; `code` is None if unknown."""
        ...

    def cleared(self) -> None:
        """Handle the end of all that a dead worker had started."""
        ...


class WorkerProcesses:
    """The workers of one attempt. `spawn_task` runs a coroutine and reports its faults."""

    def __init__(self, owner: Owner, spawn_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self.members: dict[str, AttemptWorker] = {}
        self._owner = owner
        self._spawn_task = spawn_task
        self._clearing: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """True while a worker lives, or something that one has started."""
        return bool(self.members or self._clearing)

    def pids(self) -> list[processes.ProcessId]:
        """Return (pid, start time) of every worker on this host."""
        found = [member.process.known for member in self.members.values() if member.process is not None]
        return [known for known in found if known is not None]

    def start(self, member: AttemptWorker, worker_host: WorkerHost, order: Callable[[], Awaitable[Start]]) -> None:
        """Start the member's process and run it to its end. `order` is called once all members are known."""
        self.members[member.name] = member
        self._spawn_task(self._run(member, worker_host, order))

    def send(self, name: str, message: ToWorker) -> None:
        """Send a message to a worker, unless it is gone."""
        member = self.members.get(name)
        if member is not None and member.writer is not None:
            with contextlib.suppress(OSError, RuntimeError):
                member.writer.write(TO_WORKER.encode(message))

    def kill(self, name: str) -> None:
        """Kill a worker, now or as soon as it has started."""
        if (member := self.members.get(name)) is not None:
            self._signal(member, signal.SIGKILL)

    async def all_gone(self, within_s: float, members: Iterable[AttemptWorker] | None = None) -> None:
        """Wait, for `within_s` at most, until these workers, or all present ones, have ended or are suspended."""
        asked = self.members.values() if members is None else members
        started = [member.process for member in asked if member.process is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
                for process in started:
                    group.create_task(process.gone())

    async def end(self, kill_sequence: KillSequence, members: Sequence[AttemptWorker] | None = None) -> None:
        """End these workers, or all present ones."""
        left = list(self.members.values() if members is None else members)
        for number, wait_s in kill_sequence:
            left = [member for member in left if self.members.get(member.name) is member]
            for member in left:
                self._signal(member, number)
            await self.all_gone(wait_s, left)
            if left and all(member.process is None for member in left):
                await asyncio.sleep(wait_s)

    async def all_cleared(self) -> None:
        """Wait until nothing lives of what dead workers had started."""
        if self._clearing:
            await asyncio.wait(set(self._clearing))

    def _signal(self, member: AttemptWorker, number: signal.Signals) -> None:
        member.terminating, member.terminated_by = True, number
        if member.process is not None:
            member.process.send(number)

    async def _run(self, member: AttemptWorker, worker_host: WorkerHost, order: Callable[[], Awaitable[Start]]) -> None:
        try:
            process, ours = await worker_host.start(TO_WORKER.encode(await order()))
        except ElasticError as problem:
            self.members.pop(member.name, None)
            self._owner.start_failed(member, problem)
            return
        member.process = process
        if member.terminating:
            process.send(member.terminated_by)
        reader, member.writer = await open_lossless(ours)
        listening = self._spawn_task(self._listen(member, reader))
        code = await process.ended()
        await asyncio.wait([listening], timeout=LAST_MESSAGES_S)
        listening.cancel()
        member.writer.close()
        self.members.pop(member.name, None)
        if not process.is_cleared:
            task = asyncio.create_task(process.clear())
            self._clearing.add(task)
            task.add_done_callback(self._cleared)
        self._owner.left(member, code)

    async def _listen(self, member: AttemptWorker, reader: asyncio.StreamReader) -> None:
        """Take a worker's messages. A worker that sends an invalid one is killed: nothing after it could be trusted."""
        try:
            while (message := await FROM_WORKER.read(reader)) is not None:
                if isinstance(message, Parked):
                    self._owner.parked(member, message.pinned)
                else:
                    self._owner.received(member, message)
        except ProtocolError as problem:
            self.kill(member.name)
            self._owner.unreadable(member, problem)

    def _cleared(self, task: asyncio.Task[None]) -> None:
        self._clearing.discard(task)
        self._owner.cleared()
