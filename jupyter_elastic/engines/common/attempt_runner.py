"""Runs an attempt's workers for an engine: starts and ends them as `driver.membership` decides, and reports events.

Of its parts `worker_start` starts workers, `worker_endings` ends them, `attempt_outcome` finds the cause of a failure,
`host_events` follows other hosts, `session_workers` lets workers stay, `attempt_reporter` reports.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Iterable

import msgspec

from jupyter_elastic.driver import group_actions
from jupyter_elastic.driver.engine import AttemptContext, SendReport
from jupyter_elastic.driver.group_actions import Action
from jupyter_elastic.engines.common.attempt_outcome import AttemptOutcome, failure_of
from jupyter_elastic.engines.common.attempt_reporter import AttemptReporter, Outcome
from jupyter_elastic.engines.common.attempt_state import AttemptState
from jupyter_elastic.engines.common.cell_text import read_cell
from jupyter_elastic.engines.common.engine_hooks import EngineHooks
from jupyter_elastic.engines.common.failures import Weight
from jupyter_elastic.engines.common.host_events import HostEvents
from jupyter_elastic.engines.common.session_workers import SessionWorkers
from jupyter_elastic.engines.common.stall_watch import WaitWatch
from jupyter_elastic.engines.common.stalls import patience_s
from jupyter_elastic.engines.common.worker_endings import TICK_S, WorkerEndings
from jupyter_elastic.engines.common.worker_processes import CANCEL, KILL, AttemptWorker
from jupyter_elastic.engines.common.worker_start import WorkerStarter
from jupyter_elastic.hosts.attempt_hosts import host_of
from jupyter_elastic.jobfiles import failure, newcomer_output
from jupyter_elastic.jobfiles.failure import Failure
from jupyter_elastic.jobfiles.payload import Payload, read_payload
from jupyter_elastic.platform.background_tasks import BackgroundTasks
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.types import SlotId
from jupyter_elastic.types.errors import ElasticError, ProtocolError

CAME_TO_ITS_END = Failure(message="its cell came to its end")

log = logging.getLogger(__name__)


class AttemptRunner:
    """The workers of one attempt, from their start to the report of the end. Calls its engine's hooks."""

    def __init__(self, context: AttemptContext, engine: EngineHooks, report: SendReport) -> None:
        self._engine = engine
        self._tasks = BackgroundTasks(self._task_failed)
        self.attempt = AttemptState(context, self, self.do, self._tasks.spawn)
        self.reporter = AttemptReporter(self.attempt, engine, report)
        self.starter = WorkerStarter(self.attempt, engine)
        self.endings = WorkerEndings(self.attempt, engine)
        self.outcome = AttemptOutcome(self.attempt, self.reporter, self.endings, self.end)
        self._hosts = HostEvents(self.attempt, engine, self.outcome)
        self._session = SessionWorkers(self.attempt)
        self._ticker: asyncio.Task[None] | None = None

    # --- orders

    async def launch(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """Start one worker on each slot."""
        attempt, can = self.attempt, self._engine.capabilities
        attempt.devices.update(devices)
        try:
            payload = attempt.payload = self._read_payload()
        except (OSError, msgspec.DecodeError) as problem:
            self.end("failed", f"the job's folder {attempt.context.folder} can't be read: {problem}")
            return
        cell = attempt.cell = payload.cell or read_cell(payload, can.library)
        attempt.watch = WaitWatch(
            patience_s(payload.env), payload.labels, lambda member: attempt.send(member.name, messages.SendStack())
        )
        attempt.machine.resumable = payload.resumable or can.starts_anew
        attempt.machine.elastic = can.forms_groups and cell.elastic
        self.starter.launcher = self.starter.make_launcher((*can.frameworks, *cell.frameworks))
        attempt.hosts = self._hosts.make_hosts(self.starter.launcher)
        if why := self._session.open(slots, self._engine.name):
            self.end("failed", why)
            return
        if unreachable := self._hosts.unreachable(slots):
            self.end(
                "failed",
                f"workers of this cell find each other on one host only, and {unreachable[0]} is on another: "
                "ask for fewer slots, or let the group be formed by training.run",
            )
            return
        if any(attempt.hosts.remote(slot) is not None for slot in slots):
            attempt.reaching = True
            attempt.spawn_task(self._hosts.begin(generation, slots))
        else:
            self.do(attempt.machine.want(generation, slots))
        self._ticker = asyncio.create_task(self._tick())

    async def rescale(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """Go on with exactly these slots."""
        attempt = self.attempt
        attempt.devices.update(devices)
        self.reporter.rescaled(slots)
        if not attempt.stopping:
            attempt.hosts.add(attempt.context.find_hosts())
            if lost := (*attempt.hosts.lost(slots), *self._hosts.unreachable(slots)):
                self.do(attempt.machine.lost(lost))
            self.do(attempt.machine.want(generation, slots))

    async def stop(self, how: str) -> None:
        """End the attempt; a cancel overtakes a preemption, otherwise the first order counts."""
        attempt = self.attempt
        if attempt.over or attempt.stopping == how or (attempt.stopping and how == "preempt"):
            return
        attempt.stopping, attempt.reaching, attempt.watch.waited = how, False, attempt.watch.waits
        if attempt.session is not None:
            attempt.spawn_task(self.endings.interrupt())
        elif how == "preempt":
            self._engine.leave()
            attempt.spawn_task(self.endings.end_all(KILL, after_s=self._engine.grace_s))
        else:
            attempt.spawn_task(self.endings.end_all(CANCEL))
        self.outcome.maybe_over()

    def end(self, outcome: Outcome, reason: str) -> None:
        """Release everything, and report the end."""
        self.attempt.over = True
        self._engine.close()
        if self._ticker is not None:
            self._ticker.cancel()
            self.starter.close()
        self._tasks.cancel_others()
        self.reporter.end(outcome, reason)

    # --- actions

    def do(self, actions: Iterable[Action]) -> None:
        """Execute actions of `membership`, and report what has become of the attempt."""
        for action in actions:
            log.debug("%s", action)
            match action:
                case group_actions.StartMember():
                    self.starter.start(action)
                case group_actions.Drop(name, slots):
                    self.outcome.drop(name, slots)
                case group_actions.Kill(name):
                    self._engine.end_worker(name)
                case group_actions.Restart(names, planned):
                    self._restart(names, planned=planned)
                case group_actions.Release(slot):
                    self.outcome.release(slot)
                case group_actions.GiveUp(name, why):
                    self.outcome.gave_up(why, name)
                case _:
                    self._engine.perform(action)
        self.reporter.maybe_running()
        self.reporter.maybe_elastic()
        self.outcome.maybe_over()

    def _restart(self, names: tuple[str, ...], *, planned: bool) -> None:
        """End the workers, with time to save if none has died; forget failures that a death has caused."""
        self.reporter.restarting_since = self.reporter.restarting_since or time.time()
        self.outcome.forget()
        members = [self.attempt.members[name] for name in names]
        for member in members:
            member.terminating = True
        self.attempt.spawn_task(self._engine.end_for_restart(members, planned=planned))

    # --- what workers do (`worker_processes.Owner`)

    def start_failed(self, member: AttemptWorker, problem: ElasticError) -> None:
        """Fail, as this worker can't be started; if it is on another host, leave out that host: others may suffice."""
        if self.attempt.hosts.remote(member.slot) is not None:
            self.attempt.hosts.unusable(host_of(member.slot), str(problem))
        else:
            self.outcome.last_left = (member, None)
            self.outcome.worker_failed(member, problem)
        self.do(self.attempt.machine.gone(member.name))

    def unreadable(self, member: AttemptWorker, problem: ProtocolError) -> None:
        """Fail: nothing that this worker sends could be trusted."""
        self.outcome.worker_failed(member, problem, type(problem).__name__)

    def received(self, member: AttemptWorker, message: messages.FromWorker) -> None:
        """Give a worker's message to the engine, which passes it on to `handle`."""
        self._engine.received(member, message)

    def left(self, member: AttemptWorker, code: int | None) -> None:
        """Tell the engine, which passes it on to `worker_left`, that a worker's process is gone."""
        self._engine.left(member, code)

    def parked(self, member: AttemptWorker, pinned: str) -> None:
        """Record that a worker is through with this cell, and stays for its session."""
        self._session.parked(member, pinned)

    def cleared(self) -> None:
        """Go on if the end waited for processes that a dead worker had started."""
        self.outcome.maybe_over()

    def handle(self, member: AttemptWorker, message: messages.FromWorker) -> None:
        """Do what all engines do with a worker's message; the engine takes the messages that concern groups."""
        attempt = self.attempt
        log.debug("%s: %.200s", member.name, message)
        if isinstance(message, messages.StackReport):
            attempt.watch.answered(member, message, self._engine.awaited(), list(attempt.through.values()))
            return
        attempt.watch.activity()
        if attempt.machine.resumable and member.terminating:  # a worker leaves after SIGTERM, with or without an error
            if isinstance(message, messages.Failed):
                attempt.workers.kill(member.name)
            return
        match message:
            case messages.Started(stack=stack):
                member.running, member.stack_file = True, stack
                if attempt.session is not None:
                    attempt.session.began = True
                self.reporter.maybe_running()
            case messages.ProgressMade(progress=progress):
                self.reporter.progress(progress)
            case messages.Committed(durable=durable):
                attempt.machine.committed()
                attempt.flusher.saved(durable=durable, worker_host=attempt.hosts.remote(member.slot))
            case messages.HandedOver(frameworks=frameworks):
                if attempt.session is not None:
                    attempt.session.newcomers = self.starter.make_launcher(frameworks)
                attempt.machine.kept = False
                self.reporter.maybe_elastic()
            case messages.CellDone():
                self._cell_done(member)
            case messages.Failed() | messages.Interrupted():
                self._cell_failed(member, message)
            case _:
                self._engine.group_message(member, message)

    def _cell_done(self, member: AttemptWorker) -> None:
        """Take a worker's end of its cell; a joining worker that ends its cell before it joins has failed."""
        if member.newcomer and not member.was_member and self.outcome.spares(member, CAME_TO_ITS_END):
            return
        member.done = True
        self.reporter.is_running()
        self.attempt.through[member.name] = member.rank
        self.endings.let_end(member)
        self.do(self.attempt.machine.done(member.name))

    def _cell_failed(self, member: AttemptWorker, message: messages.Failed | messages.Interrupted) -> None:
        attempt = self.attempt
        if attempt.session is not None:
            self.endings.let_end(member)
        elif isinstance(message, messages.Failed) and message.broken_group and attempt.machine.elastic:
            return  # the worker comes back from the last commit
        if self.outcome.spares(member, failure_of(message)):
            return
        if isinstance(message, messages.Failed):
            self.outcome.raised(member, message)
        elif not (attempt.stopping or member.terminating):  # the cell has interrupted itself
            self.outcome.fail(Weight.RAISED, failure_of(message))

    def worker_left(self, member: AttemptWorker, code: int | None) -> None:
        """Do what all engines do when a worker's process is gone, or through with the cell and kept."""
        attempt, machine = self.attempt, self.attempt.machine
        if attempt.session is not None and not self._session.goes_on_without(member):
            _, death = self.outcome.death(member, code)
            attempt.session.lose(f"{death.message}, in the cell of job {attempt.context.job}")
        log.info("worker %s (rank %d, slot %s) left with %s", member.name, member.rank, member.slot, code)
        if member.newcomer:
            newcomer_output.merge(attempt.context.folder, member.name, None if member.terminating else member.rank)
        if not (member.done or member.terminating or attempt.stopping):
            self.outcome.left_unasked(member, code)
        unasked = machine.needs(member.name) and not (member.terminating or attempt.stopping)
        self.do(machine.gone(member.name, by_itself=code is not None and 0 <= code != messages.BROKEN_GROUP))
        if unasked:
            self.outcome.died(member, code)

    # --- tasks

    def _task_failed(self, problem: BaseException) -> None:
        log.error("a fault in the engine", exc_info=problem)
        fault = f"a fault in the engine: {problem!r}"
        self.outcome.fail(Weight.RAISED, Failure(rank=0, type="EngineError", message=fault))

    async def _tick(self) -> None:
        attempt = self.attempt
        await asyncio.sleep(TICK_S)
        self.outcome.begin()
        while True:
            self.do(attempt.machine.tick())
            if not attempt.stopping:
                attempt.watch.tick(self._engine.awaited(), list(attempt.through.values()))
                self.endings.kill_stopped()
            await attempt.flusher.flush_if_due()
            await asyncio.sleep(TICK_S)

    def _read_payload(self) -> Payload:
        folder = self.attempt.context.folder
        if (folder / "results").exists():  # results of an earlier attempt
            shutil.rmtree(folder / "results", ignore_errors=True)
        (folder / failure.NAME).unlink(missing_ok=True)
        return read_payload(folder)
