"""One process per attempt: it holds the engine, writes progress and the end, and answers to the user's agent.

Knows the engine by `engines.base` and the agent by `link`; must not know the daemon, slots' meaning or policies. It
lives on when the agent goes, and tells everything that still matters to the next one that connects. What it leaves in
its folder is enough for a successor to end its workers should it be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from jupyter_elastic.driver import channel
from jupyter_elastic.driver.engine import Engine, Task
from jupyter_elastic.driver.progress import ProgressWriter
from jupyter_elastic.driver.usage_sampler import Meter
from jupyter_elastic.errors import ElasticError, EngineError
from jupyter_elastic.forkserver import workers
from jupyter_elastic.forkserver.client import our_source
from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder, DriverRecord
from jupyter_elastic.platform import plugins, private_files, processes
from jupyter_elastic.platform.peer import check_same_user
from jupyter_elastic.protocol.forkserver import DriverStarted
from jupyter_elastic.types import (
    AnyEffect,
    DeathReported,
    ExitReported,
    Launch,
    ProgressReported,
    ReleaseReported,
    ReplacementReported,
    Report,
    Rescale,
    RunningReported,
    SlotId,
    Stop,
)

LOG_VARIABLE = "JUPYTER_ELASTIC_LOG"
"""Level of `driver.log`: DEBUG tells every word between driver and workers."""
LINGER_S = 3.0
"""How long the driver waits for a connected agent to take the `ExitReported`; `exit.json` says it ever after."""
UNWRITTEN_LINGER_S = 60.0
"""The same when `exit.json` can't be written (full disk)."""
STOP_GRACE_S = {"preempt": 180.0, "time limit": 30.0, "cancel": 30.0}
"""How long an engine may take to stop before the driver ends its processes itself."""
MAX_UNSENT = 1024 * 1024
"""Bytes; an agent that doesn't read is let go, it gets a snapshot when it comes back."""

log = logging.getLogger(__name__)


_preloaded: dict[str, type[Engine]] = {}


def preload() -> None:
    """Load every engine before drivers are forked. One that can't be loaded is reported by the driver that wants it."""
    for name, entries in plugins.installed(plugins.ENGINES).items():
        with contextlib.suppress(Exception):
            _preloaded[name] = plugins.load(entries)
            _preloaded[name].missing()  # what it looks through is known to the drivers then
    our_source()


def load_engine(name: str) -> type[Engine]:
    """The engine of that name, by entry point; EngineError with what to do when it can't be had or lacks something."""
    engine = _preloaded[name] if name in _preloaded else _load(name)
    if missing := engine.missing():
        raise EngineError(missing)
    return engine


def _load(name: str) -> type[Engine]:
    found = plugins.installed(plugins.ENGINES)
    if name not in found:
        have = ", ".join(sorted(found)) or "none"
        raise EngineError(f"there is no engine {name!r} in {sys.prefix}; installed: {have}. Choose one with --engine")
    engine: type[Engine] = plugins.load(found[name])
    return engine


class Driver:
    """The life of one attempt, from its order to its `exit.json`."""

    def __init__(self, folder: AttemptFolder, launch: Launch, runtime: Path) -> None:
        self.folder = folder
        self.launch = launch
        self.runtime = runtime
        self._me = processes.myself()
        self._thread = threading.get_ident()
        self._loop: asyncio.AbstractEventLoop
        self._engine: Engine | None = None
        self._recorded: list[processes.Known] | None = None
        # orders
        self._generation = launch.generation
        self._given = launch.generation
        self._devices = launch.devices
        self._wanted: Rescale | None = None
        self._stop: Stop | None = None
        self._told = asyncio.Event()
        self._terminated = False
        # reports
        self._running: RunningReported | None = None
        self._released: dict[SlotId, None] = {}
        self._holding: set[SlotId] = set()
        """Slots on which the engine may have processes."""
        self._progress = ProgressWriter(folder.job_folder / "progress.jsonl", launch, self._send)
        self._mishaps: dict[type[Report], Report] = {}
        """The last death, and the last replacement."""
        self._exit: ExitReported | None = None
        self._all_gone = False
        self._over = asyncio.Event()
        self._agents: set[asyncio.StreamWriter] = set()
        self._first: asyncio.Task[None]
        """Serves the agent that was there from the start."""

    async def run(self, ready: Callable[[], None], agent: socket.socket | None = None) -> ExitReported:
        """Run the attempt to its end; comes back when no process of it lives and `exit.json` is written.

        `agent` is a connection that stands already, `ready` is called before it is used and before any worker is
        started; the agents after that one come by the socket. OSError when order or socket can't be made.
        """
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._terminate)
        self.folder.create(self.launch)
        self._record()
        server = await asyncio.start_unix_server(
            self._serve, sock=channel.listen(private_files.private_dir(self.runtime))
        )
        ready()
        if agent is not None:
            self._first = asyncio.create_task(self._serve(*await asyncio.open_connection(sock=agent)))
        tasks = [asyncio.create_task(work) for work in (self._carry_out(), self._watch(), self._meter().run())]
        await self._over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        seen = await self._finish()
        server.close()
        return seen

    # --- what the engine says -----------------------------------------------------------------------------------------

    def report(self, seen: Report) -> None:
        """The engine's `SendReport`; from whatever thread."""
        if threading.get_ident() == self._thread:
            self._see(seen)
        else:
            self._loop.call_soon_threadsafe(self._see, seen)

    def _see(self, seen: Report) -> None:
        if self._exit is not None:
            log.warning("a report after the end: %s", seen)
            return
        match seen:
            case ProgressReported():
                self._progress.put(seen)
            case RunningReported():
                self._running = seen
                self._send(seen)
            case ReleaseReported():
                if seen.generation is None:
                    seen = msgspec.structs.replace(seen, generation=self._given)
                self._released |= dict.fromkeys(seen.slots)
                self._holding -= set(seen.slots)
                self._send(seen)
            case DeathReported() | ReplacementReported():
                self._mishaps[type(seen)] = seen
                self._send(seen)
            case ExitReported():
                self._exit = self._judged(seen)
                self._over.set()

    def _judged(self, seen: ExitReported) -> ExitReported:
        """The engine's word about the end, in the light of who asked for it."""
        outcome, reason = seen.outcome, seen.reason
        if self._stop is not None and outcome in {"cancelled", "preempted"}:
            outcome = ended_by(self._stop)
            reason = reason or self._stop.reason
        elif self._terminated and outcome in {"cancelled", "preempted"}:
            outcome, reason = "lost", "the driver was told to end (SIGTERM)"
        return self._ended(outcome, reason, seen.at)

    def _ended(self, outcome: Any, reason: str, at: float | None = None) -> ExitReported:
        return ExitReported(
            at=time.time() if at is None else at,
            by=self.launch.owner,
            id=f"exit-{self.launch.job}-{self.launch.attempt}",
            job=self.launch.job,
            attempt=self.launch.attempt,
            outcome=outcome,
            reason=reason[:10_000],
        )

    def _fail(self, problem: Exception) -> None:
        """The engine itself broke: the attempt is over."""
        log.error("the engine failed", exc_info=problem)
        hint = "" if isinstance(problem, ElasticError) else self._missing()
        said = str(problem) if isinstance(problem, ElasticError) else f"{type(problem).__name__}: {problem}"
        if self._exit is None:
            self._exit = self._ended("failed", f"engine {self.launch.spec.engine!r}: {said}{hint and '; ' + hint}")
            self._over.set()

    def _missing(self) -> str:
        try:
            return self._engine.missing() if self._engine is not None else ""
        except Exception as problem:
            return f"{type(problem).__name__}: {problem}"

    # --- what the agent says ------------------------------------------------------------------------------------------

    def accept(self, order: AnyEffect) -> None:
        """Take an order. Repeats and older generations change nothing; a harder stop replaces a softer one."""
        if (order.job, order.attempt) != (self.launch.job, self.launch.attempt):
            log.warning("an order for another attempt: %s", order)
            return
        if isinstance(order, Stop):
            if self._stop is None or (self._stop.how == "preempt" and order.how != "preempt"):
                self._stop = order
                self._told.set()
            return
        if order.generation <= self._generation or self._stop is not None:
            return
        if isinstance(order, Launch):
            order = Rescale(
                job=order.job,
                attempt=order.attempt,
                owner=order.owner,
                generation=order.generation,
                slots=order.slots,
                servers=order.servers,
                devices=order.devices,
            )
        self._generation = order.generation
        self._wanted = order
        for slot in order.slots:
            self._released.pop(slot, None)
        self._told.set()

    def _terminate(self) -> None:
        self._terminated = True
        self._told.set()

    async def _carry_out(self) -> None:
        """Launch, then one order after the other: the newest wish of each kind."""
        try:
            self._engine = load_engine(self.launch.spec.engine)(self._task(), self.report)
            self._holding |= set(self.launch.slots)
            await self._engine.launch(self.launch.generation, self.launch.slots, self.launch.devices)
            stopped = ""
            while True:
                await self._told.wait()
                self._told.clear()
                how = self._stop.how if self._stop is not None else "preempt" if self._terminated else ""
                if how and how != stopped:
                    stopped = how
                    self._loop.call_later(STOP_GRACE_S[how], self._stuck, how)
                    await self._engine.stop(how)
                elif self._wanted is not None and not stopped:
                    wanted, self._wanted = self._wanted, None
                    self._given, self._devices = wanted.generation, wanted.devices
                    self._holding |= set(wanted.slots)
                    await self._engine.rescale(wanted.generation, wanted.slots, wanted.devices)
                    self._release_unheard(wanted)
        except Exception as problem:
            self._fail(problem)

    def _release_unheard(self, order: Rescale) -> None:
        """Give back what a generation granted that was overtaken before the engine heard of it."""
        unheard = tuple(slot for slot in order.draining if slot not in self._holding and slot not in order.slots)
        if unheard:
            self._see(self._release(unheard))

    def _release(self, slots: tuple[SlotId, ...]) -> ReleaseReported:
        return ReleaseReported(
            at=time.time(),
            by=self.launch.owner,
            id=f"release-{self.launch.job}-{self.launch.attempt}-{self._given}",
            job=self.launch.job,
            attempt=self.launch.attempt,
            slots=slots,
            generation=self._given,
        )

    def _stuck(self, how: str) -> None:
        """The engine was told to stop and didn't: its processes are ended at the end of `run`."""
        if self._exit is None:
            outcome = ended_by(self._stop) if self._stop is not None else "lost"
            reason = f"the engine did not stop within {STOP_GRACE_S[how]:.0f} s and was ended"
            self._exit = self._ended(outcome, reason)
            self._over.set()

    def _task(self) -> Task:
        return Task(
            job=self.launch.job,
            attempt=self.launch.attempt,
            owner=self.launch.owner,
            folder=self.folder.job_folder,
            python=self.launch.spec.python,
            runtime=self.runtime,
            min_slots=self.launch.spec.min_slots,
            warm=True,
        )

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            check_same_user(writer.get_extra_info("socket"))
            self._agents.add(writer)
            for seen in self.snapshot():
                writer.write(channel.REPORTS.encode(seen))
            while (order := await channel.ORDERS.read(reader)) is not None:
                self.accept(order)
        except (ElasticError, OSError) as problem:
            log.warning("connection dropped: %s", problem)
        finally:
            self._agents.discard(writer)
            writer.close()

    def snapshot(self) -> list[Report]:
        """All that still matters, in the order in which an engine reports it."""
        parts: list[Report] = []
        if self._running is not None:
            parts.append(self._running)
        if self._released:
            parts.append(self._release(tuple(self._released)))
        if self._progress.newest is not None:
            parts.append(self._progress.newest)
        parts += self._mishaps.values()
        if self._exit is not None and self._all_gone:
            parts.append(self._exit)
        return parts

    def _send(self, seen: Report) -> None:
        frame = channel.REPORTS.encode(seen)
        for writer in list(self._agents):
            if writer.transport.get_write_buffer_size() > MAX_UNSENT:
                writer.transport.abort()
            else:
                writer.write(frame)

    # --- what is left on disk -----------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Keep `driver.json` true: often while processes come and go, seldom while nothing happens."""
        quiet_s = 0.0
        while True:
            await asyncio.sleep(0.02 if quiet_s < 2.0 else 0.2)
            quiet_s = 0.0 if self._record() else quiet_s + 0.02

    def _record(self) -> bool:
        pids = self._pids()
        if pids == self._recorded:
            return False
        record = DriverRecord(
            job=self.launch.job, attempt=self.launch.attempt, driver=self._me, workers=tuple(sorted(pids))
        )
        try:
            self.folder.write_record(record)
        except OSError as problem:
            log.warning("can't write driver.json: %s", problem)
            return False
        self._recorded = pids
        return True

    def _pids(self) -> list[processes.Known]:
        try:
            return list(self._engine.pids()) if self._engine is not None else []
        except Exception:
            log.exception("the engine doesn't know its processes")
            return self._recorded or []

    def _meter(self) -> Meter:
        waits = getattr(self._engine, "waits", str)  # engines of others need not know
        return Meter(self.folder.job_folder, self._pids, lambda: self._devices, waits)

    async def _finish(self) -> ExitReported:
        """End what the engine left, write the last progress and the end, and let the agent take it."""
        assert self._exit is not None
        left = processes.living({*self._pids(), *(self._recorded or [])})
        if left:
            log.warning("ending %d processes that the engine left", len(left))
            await processes.end(left)
            await workers.cleared()
        self._progress.flush()
        try:
            self.folder.write_exit(self._exit)
            linger_s, alone = LINGER_S, False
        except OSError as problem:
            log.warning("can't write exit.json, waiting for an agent that takes the end by word: %s", problem)
            linger_s, alone = UNWRITTEN_LINGER_S, not self._agents
        self._all_gone = True
        self._send(self._exit)
        since = time.monotonic()
        while (self._agents or alone) and time.monotonic() - since < linger_s:
            alone = alone and not self._agents
            await asyncio.sleep(0.01)
        return self._exit


def ended_by(stop: Stop) -> Any:
    """How an attempt ends that was told to stop."""
    return {"cancel": "cancelled", "preempt": "preempted", "time limit": "failed"}[stop.how]


def run(
    folder: AttemptFolder,
    runtime: Path,
    launch: Launch,
    answer: Callable[[DriverStarted], None],
    agent: socket.socket | None = None,
) -> int:
    """Be the driver of an attempt; the exit code. `answer` is called once its order is on disk, or when it can't start.

    Of two drivers started for one attempt the second finds the lock taken and does nothing.
    """
    level = os.environ.get(LOG_VARIABLE, "INFO")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    workers.adopt()
    lock = folder.lock
    if not lock.acquire():
        answer(DriverStarted("", held=True))
        return 3
    if folder.exit() is not None:
        answer(DriverStarted("the attempt is over"))
        return 4
    try:
        asyncio.run(Driver(folder, launch, runtime).run(lambda: answer(DriverStarted("")), agent))
    finally:
        with contextlib.suppress(OSError):
            (runtime / channel.SOCKET_NAME).unlink()
        lock.release()
    return 0
