"""What engines of worker processes share: start them, listen to them, end them, and say how the attempt ended.

The shell around `membership`: it does what the machine says and tells it what happens. Which rounds there are and what
they need is the business of the engine that derives from this.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec

from jupyter_elastic.driver import membership
from jupyter_elastic.driver.engine import SendReport, Task
from jupyter_elastic.driver.membership import Action, Membership
from jupyter_elastic.driver.waits import LOOKS, patience_s, sentence
from jupyter_elastic.engines import cell_text
from jupyter_elastic.engines.failures import DIED, Failure, ended_early
from jupyter_elastic.errors import ElasticError, ProtocolError
from jupyter_elastic.forkserver.workers import Process, Spawner, default_threads
from jupyter_elastic.jobfiles import newcomer_output
from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.jobfiles.payload import Payload, read_payload
from jupyter_elastic.platform import processes
from jupyter_elastic.protocol import worker as messages
from jupyter_elastic.protocol.worker import FROM_WORKER, TO_WORKER, StackReport
from jupyter_elastic.types import (
    DeathReported,
    ExitReported,
    ProgressReported,
    ReleaseReported,
    ReplacementReported,
    Report,
    RunningReported,
    SlotId,
)
from jupyter_elastic.worker import environment, stacks

Outcome = Literal["completed", "failed", "cancelled", "preempted", "lost"]

TICK_S = 0.1
DISK_S = 10.0
"""The last commit is brought to disk at least this often."""
END_GRACE_S = 10.0
"""How long a worker has to end after its cell is through."""
COLLECT_S = 0.15
"""How long after the first failure the others are listened to, so that the cause is named and not its echo."""
BROKEN_RING, CAUSE_S = 2, 1.0
"""Weight of a ring that broke. It broke for a reason, such as a death of which the news is still to come: that is
waited for, but not longer."""
LADDER = ((signal.SIGINT, 1.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 0.0))
"""How a cancelled worker is ended: what, and how long it has then."""
LOCKED = "(something there does not let go of Python's lock)"

log = logging.getLogger(__name__)


@dataclass
class Member:
    """A worker as its engine sees it."""

    name: str
    slot: SlotId
    rank: int
    local_rank: int = 0
    """Its number on this host, for its whole life; no other that lives has it."""
    process: Process | None = None
    writer: asyncio.StreamWriter | None = None
    running: bool = False
    """Its cell runs."""
    done: bool = False
    doomed: bool = False
    """It is to be killed as soon as it is there."""
    at_door: float = 0.0
    """When it last came to a door."""
    running_ring: bool = False
    """It has been in a ring."""
    newcomer: bool = False
    """What it prints is kept apart until it has joined."""
    look: StackReport | None = None
    """Where it was when it was last asked."""
    unanswered: int = 0
    """Times that it was asked since it last answered."""
    stack: int = -1
    """Its file descriptor into which `stacks.DUMP` has its stack written."""


class WorkersEngine:
    """The common part of the engines whose workers are processes with a stream to the driver."""

    name: ClassVar[str] = ""
    rings: ClassVar[bool] = False
    grace_s: ClassVar[float] = 10.0
    """How long the workers have to save and leave when the job is preempted."""

    def __init__(self, task: Task, report: SendReport) -> None:
        self.task = task
        self.machine = Membership(min_slots=task.min_slots)
        self._report_to = report
        self._members: dict[str, Member] = {}
        self._commits = Commits(task.folder)
        self._spawner: Spawner
        self._port: socket.socket
        """Holds `MASTER_PORT`, one for each attempt."""
        self._servers: list[socket.socket] = []
        """Hold a port for each worker, where TensorFlow's own strategy wants them."""
        self._cell = cell_text.Cell()
        self._devices: dict[SlotId, str] = {}
        self._failures: list[Failure] = []
        self._failing = False
        self._stopping = ""
        self._through: dict[str, int] = {}
        """Workers whose cell came to its end, and their ranks."""
        self._told = 0
        """The last generation that was reported running; 0: none yet."""
        self._last: RunningReported | None = None
        """That report."""
        self._over = False
        """No worker lives; what is left is to say so."""
        self._ended = False
        self._unsaved_since: float | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._clearing: set[asyncio.Task[Any]] = set()
        self._releasing: set[asyncio.Task[Any]] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._environment: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        """Names of other cells' lines -> how people call them."""
        self._oom_kills: float = math.inf
        """Before this attempt."""
        self.looks = 0
        """How often the workers were asked where they are."""
        self._patience_s = 0.0
        self._waits = ""
        self._heard_at = self._looked_at = time.monotonic()
        self._step: int | None = None
        """The last one that was reported."""
        self._deaths = 0
        self._bereft: dict[SlotId, tuple[float, int, int]] = {}
        """Slots whose worker died: when, its rank, the number of that death."""
        self._last_words: tuple[Member, int | None] | None = None
        """The worker that left last without being asked, and its exit code."""

    # --- the engine's page

    async def launch(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """Start one worker on each slot."""
        self._devices.update(devices)
        try:
            payload = self._read_payload()
        except (OSError, msgspec.DecodeError) as problem:
            self._end("failed", f"the job's folder {self.task.folder} can't be read: {problem}")
            return
        self._cell = cell_text.read_cell(payload)
        self._labels = {name: label for name, (label, _) in payload.sources.items()}
        self._environment = payload.env
        self._patience_s = patience_s(payload.env)
        self._port = environment.reserve()
        self.machine.elastic = self.rings and self._cell.elastic
        self._spawner = Spawner(
            self.task.python, payload.env, self._cell.frameworks, warm=self.task.warm, kept_for=payload.kernel
        )
        self._do(self.machine.want(generation, slots))
        self._ticker = asyncio.create_task(self._tick())

    async def rescale(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """A wish: go on with exactly these slots."""
        self._devices.update(devices)
        self._bereft = {slot: death for slot, death in self._bereft.items() if slot in slots}
        if not self._stopping:
            self._do(self.machine.want(generation, slots))

    async def stop(self, how: str) -> None:
        """End the attempt; a cancel overtakes a preemption, otherwise the first word counts."""
        if self._over or self._stopping == how or (self._stopping and how == "preempt"):
            return
        self._stopping = how
        if how == "preempt":
            self._preempt()
            self._spawn_task(self._end_all(((signal.SIGKILL, 0.0),), after_s=self.grace_s))
        else:
            self._spawn_task(self._end_all(LADDER))
        self._maybe_over()

    def pids(self) -> list[tuple[int, float]]:
        """Every worker's (pid, start time)."""
        return [member.process.known for member in self._members.values() if member.process is not None]

    # --- what an engine adds

    def _preempt(self) -> None:
        """Ask the workers to save and leave."""
        raise NotImplementedError

    def _perform(self, action: Action) -> None:
        """Do one thing that concerns rings."""
        raise NotImplementedError

    def _received(self, member: Member, message: messages.FromWorker) -> None:
        """Take a message that concerns groups."""
        raise NotImplementedError

    def _rank_of(self, fork: membership.Fork) -> int:
        """The number that a new worker starts with."""
        return fork.rank

    # --- doing

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            log.debug("%s", action)
            match action:
                case membership.Fork():
                    taken = {other.local_rank for other in self._members.values()}
                    local_rank = environment.smallest_free(taken)
                    member = Member(
                        action.name, action.slot, self._rank_of(action), local_rank, newcomer=action.newcomer
                    )
                    self._members[action.name] = member
                    self._spawn_task(self._live(member, action.size))
                case membership.Kill(name):
                    self._kill(name)
                case membership.Release(slot):
                    self._releasing.add(self._spawn_task(self._release(slot)))
                case membership.GiveUp(name, why):
                    self._gave_up(name, why)
                case _:
                    self._perform(action)
        self._maybe_running()
        self._maybe_elastic()
        self._maybe_over()

    def send(self, name: str, message: messages.ToWorker) -> None:
        """Send a message to a worker, unless it is gone."""
        member = self._members.get(name)
        if member is not None and member.writer is not None:
            with contextlib.suppress(OSError, RuntimeError):
                member.writer.write(TO_WORKER.encode(message))

    def _kill(self, name: str) -> None:
        member = self._members.get(name)
        if member is None:
            return
        member.doomed = True
        if member.process is not None:
            processes.send(member.process.known, signal.SIGKILL)

    async def _live(self, member: Member, size: int) -> None:
        """A worker's whole life, from its start to the last of its processes."""
        try:
            process, ours = await self._spawner.start(TO_WORKER.encode(self._order(member, size)))
        except ElasticError as problem:
            self._fail(Failure(0, member.rank, "EngineError", str(problem)))
            self._members.pop(member.name, None)
            self._do(self.machine.gone(member.name))
            return
        member.process = process
        if member.doomed:
            processes.send(process.known, signal.SIGKILL)
        reader, member.writer = await asyncio.open_connection(sock=ours)
        listening = self._spawn_task(self._listen(member, reader))
        code = await process.ended()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.shield(listening)  # its last words
        listening.cancel()
        member.writer.close()
        self._left(member, code)

    def _order(self, member: Member, size: int) -> messages.Start:
        devices = {other.local_rank: self._devices.get(other.slot, "") for other in self._members.values()}
        visible, device = environment.visible(member.local_rank, devices, pins=self._cell.pins)
        return messages.Start(
            name=member.name,
            rank=member.rank,
            size=size,
            local_rank=member.local_rank,
            visible=visible,
            device=device,
            port=self._port.getsockname()[1],
            engine=self.name,
            folder=str(self.task.folder),
            job=self.task.job,
            attempt=self.task.attempt,
            newcomer=member.newcomer,
            env={**default_threads(self._environment, gpu=bool(visible)), **self._cluster(member, size)},
        )

    def _cluster(self, member: Member, size: int) -> dict[str, str]:
        if not self._cell.tf_cluster:
            return {}
        self._servers += [environment.reserve() for _ in range(size - len(self._servers))]
        ports = [held.getsockname()[1] for held in self._servers[:size]]
        return {"TF_CONFIG": environment.tf_config(member.rank, ports)}

    async def _listen(self, member: Member, reader: asyncio.StreamReader) -> None:
        """Take a worker's messages. One that sends what can't be read is ended: nothing after it could be trusted."""
        try:
            while (message := await FROM_WORKER.read(reader)) is not None:
                self._take(member, message)
        except ProtocolError as problem:
            self._fail(Failure(0, member.rank, type(problem).__name__, str(problem)))
            self._kill(member.name)

    def _take(self, member: Member, message: messages.FromWorker) -> None:
        log.debug("%s: %.200s", member.name, message)
        if isinstance(message, messages.StackReport):
            self._saw(member, message)
            return
        self._heard_at, self._waits = time.monotonic(), ""
        match message:
            case messages.Started(stack=stack):
                member.running, member.stack = True, stack
                self._maybe_running()
            case messages.Progress(progress=progress):
                self._tell_running()
                self._step = progress.step
                self.report(ProgressReported(progress=progress, **self._stamp()))
            case messages.Committed(durable=durable):
                self.machine.committed()
                if durable:
                    self._unsaved_since = None
                elif self._unsaved_since is None:
                    self._unsaved_since = time.monotonic()
            case messages.Done():
                member.done = True
                self._tell_running()
                self._through[member.name] = member.rank
                self._spawn_task(self._see_to_end(member))
                self._do(self.machine.done(member.name))
            case messages.Failed(broken_group=True) if self.machine.elastic:
                pass  # it comes back from the last commit
            case messages.Failed():
                self._fail_of(message, weight=BROKEN_RING if message.echo else 0)
            case messages.Interrupted() if not self._stopping:  # nobody has interrupted it: its own cell has
                self._fail_of(message)
            case messages.Interrupted() | messages.Bye():
                pass
            case _:
                self._received(member, message)

    def _fail_of(self, message: messages.Failed | messages.Interrupted, weight: int = 0) -> None:
        self._fail(Failure(weight, message.rank, message.error, message.message, message.traceback))

    def _left(self, member: Member, code: int | None) -> None:
        """A worker's process is gone."""
        self._members.pop(member.name, None)
        assert member.process is not None
        if not member.process.cleared.is_set() or cell_text.has_group(member.process.pid):
            task = asyncio.create_task(_clear(member.process))
            self._clearing.add(task)
            task.add_done_callback(self._cleared)
        log.info("worker %s (rank %d, slot %s) left with %s", member.name, member.rank, member.slot, code)
        if member.newcomer:
            newcomer_output.merge(self.task.folder, member.name, None if member.doomed else member.rank)
        if not (member.done or member.doomed or self._stopping):
            self._last_words = (member, code)
            if self._failing:  # perhaps it died first and is heard of last
                self._failures.append(self._death(member, code))
        unasked = self.machine.needs(member.name) and not (member.doomed or self._stopping)
        self._do(self.machine.gone(member.name))
        if unasked and not self._failing:
            self._died(member, code)

    def _died(self, member: Member, code: int | None) -> None:
        """Report a death after which the attempt goes on."""
        self._deaths += 1
        self._bereft[member.slot] = (time.monotonic(), member.rank, self._deaths)
        cause = cell_text.cause(code, oom=cell_text.oom_kills() > self._oom_kills)
        seen = DeathReported(
            count=self._deaths, rank=member.rank, slot=member.slot, cause=cause, step=self._step, **self._stamp()
        )
        self.report(seen)

    def replaced(self, slots: Iterable[SlotId]) -> None:
        """On these slots are workers that take part: report those whose predecessors died."""
        for slot in slots:
            if slot in self._bereft:
                since, rank, count = self._bereft.pop(slot)
                after_s = time.monotonic() - since
                self.report(ReplacementReported(count=count, rank=rank, slot=slot, after_s=after_s, **self._stamp()))

    def _cleared(self, task: asyncio.Task[Any]) -> None:
        self._clearing.discard(task)
        self._maybe_over()

    def _gave_up(self, name: str, why: str) -> None:
        if why == "left early":
            other = next((m.rank for m in self._members.values() if not m.done), 0)
            self._fail(ended_early(self._through[name], other))
            return
        failure = self._death(*(self._last_words or (Member(name, "", 0), None)))
        if why == "too often":
            failure.message += "; workers died again and again without a commit between"
        self._fail(failure)

    def _death(self, member: Member, code: int | None) -> Failure:
        text = cell_text.death(member.rank, code, oom=cell_text.oom_kills() > self._oom_kills)
        stack = cell_text.crash(self.task.folder / f"rank.{member.rank}" / "stderr", code)
        told = f"{text}\n{stack}" if stack else ""
        return Failure(1 if code is None or code < 0 else 3, member.rank, DIED, text, told)

    # --- ends

    def _fail(self, failure: Failure) -> None:
        """Note a failure; a moment later the attempt ends with the one that is nearest to the cause."""
        self._failures.append(failure)
        if not self._failing:
            self._failing = True
            self._spawn_task(self._fail_soon())

    async def _fail_soon(self) -> None:
        await asyncio.sleep(COLLECT_S)
        until = time.monotonic() + CAUSE_S
        while self._cause().weight >= BROKEN_RING and time.monotonic() < until:  # noqa: ASYNC110 - many ways to end
            await asyncio.sleep(COLLECT_S / 10)
        await self._end_all(((signal.SIGTERM, 0.5), (signal.SIGKILL, 0.0)))

    async def _end_all(self, ladder: tuple[tuple[signal.Signals, float], ...], *, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        self._do(self.machine.end())
        for what, wait_s in ladder:
            for member in self._members.values():
                member.doomed = True
                if member.process is not None:
                    processes.send(member.process.known, what)
            await self._nobody_left(wait_s)

    async def _nobody_left(self, patience_s: float) -> None:
        """Wait until no worker lives, but not longer than this."""
        gone = [processes.gone(m.process.known) for m in self._members.values() if m.process is not None]
        if gone:
            tasks = [asyncio.create_task(wait) for wait in gone]
            _, late = await asyncio.wait(tasks, timeout=patience_s)
            for task in late:
                task.cancel()
        elif self._members:
            await asyncio.sleep(patience_s)

    async def _see_to_end(self, member: Member) -> None:
        await asyncio.sleep(END_GRACE_S)
        if member.name in self._members and member.process is not None:
            log.warning("worker %s is through and doesn't end: killed", member.name)
            processes.send(member.process.known, signal.SIGKILL)

    async def _release(self, slot: SlotId) -> None:
        if self._clearing:
            await asyncio.wait(set(self._clearing))
        if not self._ended:
            self.report(ReleaseReported(slots=(slot,), **self._stamp()))

    def _maybe_over(self) -> None:
        if self._over or self._members or self._clearing or not self.machine.over:
            return
        self._over = True
        self._spawn_task(self._finish())

    async def _finish(self) -> None:
        if self._failing and not self._stopping:
            self._cause().write(self.task.folder, self._failures)
        outcome, reason = self._outcome()
        await asyncio.to_thread(self._commits.release, keep=outcome != "completed")
        if self._releasing:
            await asyncio.wait(self._releasing)
        self._end(outcome, reason)

    def _outcome(self) -> tuple[Outcome, str]:
        if self._stopping == "time limit":
            return "failed", "the job ran longer than its time limit"
        if self._stopping == "cancel":
            return "cancelled", ""
        if self._failing:
            return "failed", self._cause().reason
        if self._stopping and not self._through:
            return "preempted", ""
        return "completed", ""

    def _cause(self) -> Failure:
        cause = min(self._failures, key=lambda failure: (failure.weight, failure.rank))
        if cause.weight >= BROKEN_RING and self._through:
            first = next(iter(self._through.values()))
            words = f"{cause.message}; rank {first} had come to the end of its cell"
            return dataclasses.replace(cause, message=words)
        return cause

    def _end(self, outcome: Outcome, reason: str) -> None:
        self._over = self._ended = True
        if self._ticker is not None:
            self._ticker.cancel()
            self._spawner.close()
            for held in (self._port, *self._servers):
                held.close()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        seen = ExitReported(outcome=outcome, reason=reason[:2000], **self._stamp())
        self._report_to(seen)

    # --- the rest

    def report(self, seen: Report) -> None:
        """Tell the driver."""
        if not self._ended:
            self._report_to(seen)

    def running(self, generation: int, slots: tuple[SlotId, ...], pause_s: float = 0.0) -> None:
        """Report that the members train."""
        self._told = max(self._told, generation)
        self._last = RunningReported(
            generation=generation, slots=slots, pause_s=pause_s, elastic=self._elastic(), **self._stamp()
        )
        self.report(self._last)

    def _elastic(self) -> bool | None:
        """Whether the cell can regroup: known when it has come to its elastic loop, hinted at by its text before."""
        return True if self.rings and self.machine.regroups else None if self.rings and self._cell.elastic else False

    def _maybe_elastic(self) -> None:
        """The cell came to its loop after it was reported running: from now on its size may change."""
        if self._last is not None and self._last.elastic is not True and self._elastic() and not self._stopping:
            self.running(self._last.generation, self._last.slots, self._last.pause_s)

    def _maybe_running(self) -> None:
        """Without a ring a wish is fulfilled when every wanted worker runs its cell."""
        wanted, generation = self.machine.wanted, self.machine.generation
        rings = self.rings and (self._cell.rings or self.machine.regroups)
        if rings or self._stopping or self._told >= generation:
            return
        if wanted and {m.slot for m in self._members.values() if m.running and not m.doomed} >= set(wanted):
            self.running(generation, wanted)

    def _tell_running(self) -> None:
        """A worker got somewhere: the attempt runs, whether or not there was a ring."""
        if not self._told:
            self.running(self.machine.generation, self.machine.wanted)

    def _stamp(self) -> dict[str, Any]:
        task = self.task
        return {"at": time.time(), "by": task.owner, "id": uuid.uuid4().hex, "job": task.job, "attempt": task.attempt}

    def _spawn_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("a fault in the engine", exc_info=problem)
            self._fail(Failure(0, 0, "EngineError", f"a fault in the engine: {problem!r}"))

    # --- who waits for whom

    def waits(self) -> str:
        """Which rank waits for which, in words; empty while nobody does."""
        return self._waits

    def _watch(self) -> None:
        """While nothing is heard of the workers, ask them now and then where they are."""
        now, every_s = time.monotonic(), self._patience_s / LOOKS
        asked = self._asked()
        if not every_s or self._stopping or min(now - self._heard_at, now - self._looked_at) < every_s:
            return
        if len(asked) + len(self._through) < 2:
            return
        self._judge(asked)
        self._looked_at = now
        self.looks += 1
        waited_for = any(member.look and member.look.held for member in asked)
        for member in asked:
            if member.unanswered and waited_for and member.process:
                processes.send(member.process.known, stacks.DUMP)
            member.unanswered += 1
            self.send(member.name, messages.SendStack())

    def _asked(self) -> list[Member]:
        return [m for m in self._members.values() if m.running and not (m.done or m.doomed)]

    def _saw(self, member: Member, report: messages.StackReport) -> None:
        member.look, member.unanswered = msgspec.structs.replace(report, rank=member.rank), 0
        asked = self._asked()
        if not any(m.unanswered for m in asked):
            self._judge(asked)

    def _judge(self, asked: list[Member]) -> None:
        """Say who waits; one that did not answer twice can't: its main thread does not let go of Python's lock."""
        looks = []
        for member in asked:
            look = msgspec.structs.replace(member.look or StackReport(where="an unknown place"), rank=member.rank)
            if member.unanswered > 1:
                look = self._look_from_outside(member, look)
            looks.append(look)
        before, self._waits = self._waits, sentence(looks, list(self._through.values()), self._patience_s)
        if self._waits and not before:
            stacks = "".join(f"\nrank {look.rank}:\n  " + "\n  ".join(look.stack) for look in looks)
            log.warning("%s%s", self._waits, stacks)

    def _look_from_outside(self, member: Member, last: StackReport) -> StackReport:
        """Where a worker is that can't answer, by the stack that it was made to write; else where it last was."""
        found = None
        if member.process:
            with contextlib.suppress(OSError):
                found = stacks.dumped(member.process.pid, member.stack, self._labels)
        if found:
            where = f"{found.where} {LOCKED}"
            member.look = msgspec.structs.replace(last, where=where, held=False, stack=found.stack)
            return member.look
        if LOCKED in last.where:
            return last
        where = f"{last.where} when it last answered {LOCKED}"
        return msgspec.structs.replace(last, held=False, where=where)

    async def _tick(self) -> None:
        await asyncio.sleep(TICK_S)
        self._oom_kills = cell_text.oom_kills()
        while True:
            self._do(self.machine.tick())
            self._watch()
            if self._unsaved_since is not None and time.monotonic() - self._unsaved_since > DISK_S:
                self._unsaved_since = None
                try:
                    await asyncio.to_thread(self._commits.to_disk)
                except OSError as problem:
                    log.warning("the commit could not be brought to disk: %s", problem)
            await asyncio.sleep(TICK_S)

    def _read_payload(self) -> Payload:
        folder = self.task.folder
        if (folder / "results").exists():  # of an attempt before this one
            shutil.rmtree(folder / "results", ignore_errors=True)
        (folder / "error.json").unlink(missing_ok=True)
        return read_payload(folder)


async def _clear(process: Process) -> None:
    """See to it that nothing lives any more which a dead worker has started."""
    await process.cleared.wait()
    if cell_text.has_group(process.pid):  # whoever forked it can't tell
        await processes.end([process.known], 0.5)
