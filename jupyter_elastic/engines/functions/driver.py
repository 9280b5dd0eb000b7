"""The driver's half: hands calls to workers, repeats those of a dead worker, requests as many slots as calls need.

After some idle time it takes no more calls, and the job ends: later calls are another job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from typing import ClassVar

import msgspec

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.driver.engine import AttemptContext, SendReport
from jupyter_elastic.engines.common import deaths
from jupyter_elastic.engines.common.stall_watch import WaitWatch
from jupyter_elastic.engines.common.worker_processes import AttemptWorker
from jupyter_elastic.engines.common.workers_engine import WorkersEngine
from jupyter_elastic.engines.functions.queue import Queue, size
from jupyter_elastic.jobfiles import call_files as files
from jupyter_elastic.jobfiles import failure
from jupyter_elastic.jobfiles.call_files import BegunCalls, Calls, Raised, ResultKind, ResultReader, ResultWriter
from jupyter_elastic.protocol import wire
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.types import Progress, ProgressReported, SlotId
from jupyter_elastic.types.capabilities import Capabilities
from jupyter_elastic.types.errors import ElasticError

IDLE_S = 2.0
"""Seconds that workers wait for more calls before the job ends."""
POLL_S, POLL_BUSY_S = 0.005, 0.05
"""Seconds between two polls for new calls: while a worker waits for some, and while none does."""
SHARE_S = 0.1
"""Seconds with a chunk after which a worker gives back calls that it has not begun, if others have nothing to do."""
SIZE_S = 0.5
"""Minimum seconds between two changes of the wanted number of slots."""
SHRINK_S = 2.0
"""Seconds with fewer calls than slots before some slots are given back."""
ASK_S = 5.0

log = logging.getLogger(__name__)


class FunctionsEngine(WorkersEngine):
    """One attempt of a job that calls functions."""

    name: ClassVar[str] = "functions"
    capabilities: ClassVar[Capabilities] = Capabilities(
        takes_cells=False, torchrun=False, worker="jupyter_elastic.engines.functions.worker:FunctionsWorker"
    )

    def __init__(self, context: AttemptContext, report: SendReport) -> None:
        super().__init__(context, report)
        self.queue = Queue()
        self._calls: Calls
        self._begun: BegunCalls
        self._lost: ResultWriter
        """Results that no worker can write any more."""
        self._given_at: dict[str, float] = {}
        """Time at which each worker got its calls; absent once it was asked to share them."""
        self._active_at = time.monotonic()
        self._news = asyncio.Event()
        self._closed = False
        """True when no more calls are taken: workers are to end."""

    async def launch(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """Start workers, and give them calls."""
        try:
            await asyncio.to_thread(self._restore)
        except FileNotFoundError as problem:
            self.runner.end("failed", f"the engine functions is for elastic.submit, and not for cells: {problem}")
            return
        await super().launch(generation, slots, devices)
        if self.attempt.over:
            return
        self.machine.elastic = True  # each worker works by itself
        self.attempt.watch = WaitWatch()  # and none waits for another
        self.attempt.spawn_task(self._feed())
        self.attempt.spawn_task(self._fit())

    # --- the queue

    def _restore(self) -> None:
        """Read the calls so far, and the results of attempts before this one."""
        folder = self.context.folder
        self._calls, self._begun = Calls(folder), BegunCalls(folder)
        self._lost = ResultWriter(folder, f"{self.context.attempt}.driver")
        while count := self._calls.more():
            self.queue.add(count)
        reader = ResultReader(folder)
        ended = set(reader.numbers())
        reader.close()
        for number in set(range(self.queue.total)) - ended:
            state = self._begun.state(number)
            if state == BegunCalls.CANCELLED:
                ended.add(number)
            elif state == BegunCalls.RUNS and not self._calls.retries[number]:
                self._lose(number, "the attempt ended while the call ran, and it may not be repeated")
                ended.add(number)
        self.queue.skip(ended)

    async def _feed(self) -> None:
        """Hand out calls as they come, until no more come."""
        while not (self.attempt.over or self.attempt.stopping):
            while count := self._calls.more():
                self.queue.add(count)
                self._active_at = time.monotonic()
                await asyncio.sleep(0)
            idle = self._hand_out()
            if self._is_idle() and self._calls.close_if_read():
                self._close()
                return
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S if idle else POLL_BUSY_S):
                    await self._news.wait()

    def _hand_out(self) -> bool:
        """Give calls to workers that have none; return True if some are left without."""
        ready = [
            member for member in self.members.values() if member.running and not (member.terminating or member.done)
        ]
        idle = False
        for member in ready:
            if member.name in self.queue.held:
                continue
            if numbers := self.queue.take(member.name, len(ready)):
                self._given_at[member.name] = time.monotonic()
                places = tuple((number, self._calls.offsets[number]) for number in numbers)
                self.attempt.send(member.name, messages.RunCalls(calls=places))
            else:
                idle = True
        if idle:
            self._share()
        return idle

    def _share(self) -> None:
        """Let workers that have had their calls for long give back those that others could run."""
        due = time.monotonic() - SHARE_S
        for name in [name for name, at in self._given_at.items() if at < due]:
            del self._given_at[name]
            if self.queue.stuck(name):
                self.attempt.send(name, messages.GiveBack())

    def _is_idle(self) -> bool:
        if self.queue.unfinished:
            self._active_at = time.monotonic()
        return time.monotonic() - self._active_at > IDLE_S

    def _close(self) -> None:
        self._closed = True
        if not self.members:
            self.attempt.do(self.machine.end())
        for name in self.members:
            self.attempt.send(name, messages.Update())

    def _lose(self, number: int, why: str) -> None:
        lost = Raised(type=failure.DIED, message=why)
        self._lost.write(number, ResultKind.RAISED, msgspec.msgpack.encode(lost))

    # --- how many slots

    async def _fit(self) -> None:
        """Request as many slots as there are calls from the pool, and fewer when there are fewer for a while."""
        asked, most, since = 0, 0, time.monotonic()
        async with AsyncClient(timeout_s=ASK_S) as client:
            while not (self.attempt.over or self.attempt.stopping or self._closed):
                await asyncio.sleep(SIZE_S)
                self._tell()
                try:
                    if not most:
                        (info,) = await client.jobs(job=self.context.job)
                        asked = info.spec.max_slots
                        slots = len(expect(await client.ask(wire.ListHosts()), wire.Hosts).slots)
                        most = max(1, files.limit_of(self.context.folder, slots))
                    wanted = size(self.queue.unfinished, most)
                    now = time.monotonic()
                    if wanted >= asked:
                        since = now
                    if wanted > asked or now - since > SHRINK_S:
                        await client.ask(wire.ResizeJob(job=self.context.job, max_slots=wanted))
                        asked, since = wanted, now
                except (ElasticError, ValueError) as problem:  # no daemon, or it does not know yet that the job runs
                    log.info("the pool was not asked for another size: %s", problem)

    def _tell(self) -> None:
        """Report the number of finished calls."""
        progress = Progress(samples=float(self.queue.ended), total_samples=float(self.queue.total))
        if progress != self._told:
            self._told = progress
            self.runner.reporter.report(ProgressReported(progress=progress, **self.attempt.about))

    _told = Progress()

    # --- hooks

    def elastic(self) -> bool:
        """Return True: any number of workers runs calls."""
        return True

    def leave(self) -> None:
        """Let each worker finish its call, if that is soon."""
        self.attempt.do(self.machine.end())
        for name in self.members:
            self.end_worker(name)

    def end_worker(self, name: str) -> None:
        """Let a worker finish its call, if that is soon."""
        member = self.members.get(name)
        if member is None or not member.running:
            super().end_worker(name)
            return
        member.terminating = True
        self.attempt.send(name, messages.Update())
        self.attempt.spawn_task(self._kill_in_time(member))

    async def _kill_in_time(self, member: AttemptWorker) -> None:
        await asyncio.sleep(self.grace_s)
        if self.members.get(member.name) is member and member.process is not None:
            member.process.send(signal.SIGKILL)

    def received(self, member: AttemptWorker, message: messages.FromWorker) -> None:
        """Take a worker's message."""
        match message:
            case messages.CallsRan(calls=numbers, busy_s=busy_s):
                self.queue.ran(member.name, numbers, busy_s)
                self._given_at.pop(member.name, None)
                self.machine.committed()
            case messages.GaveBack(calls=numbers):
                self.queue.given_back(member.name, numbers)
            case messages.CellDone() if not self._closed:  # the worker's slot is not wanted any more
                member.terminating = True
            case _:
                super().received(member, message)
                if self._closed and isinstance(message, messages.Started):
                    self.attempt.send(member.name, messages.Update())
        self._news.set()

    def left(self, member: AttemptWorker, code: int | None) -> None:
        """Give the calls of a worker that is gone to others."""
        self._given_at.pop(member.name, None)
        if member.name in self.queue.held:
            file = f"{self.context.attempt}.{member.name}"
            reader = ResultReader(self.context.folder)
            lost = self.queue.gone(
                member.name,
                ended=reader.numbers(file),
                begun=lambda number: self._begun.state(number) == BegunCalls.RUNS,
                retries=lambda number: self._calls.retries[number],
                died=not member.terminating,
            )
            reader.close()
            for number in lost:
                self._lose(number, deaths.describe(member.rank, code, oom=False))
            if lost:
                self.machine.committed()
        super().left(member, code)
        self._news.set()
