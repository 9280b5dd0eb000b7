"""Runs one attempt in a process of its own: owns the engine, writes progress and the end, and answers the user's agent.

Knows the engine by `driver.engine`; must not know the daemon, slots' meaning or policies. The driver outlives its
agent, and sends the next agent that connects everything that still matters. If the driver is killed, a successor ends
its workers by the files that it left in its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from jupyter_elastic.driver.agent_connections import AgentConnections
from jupyter_elastic.driver.agent_watchdog import AgentWatchdog
from jupyter_elastic.driver.engine import AttemptContext, Engine, completed
from jupyter_elastic.driver.lease import COMMIT_S, TERM_S, AttemptLease
from jupyter_elastic.driver.orders import Orders, ended_by
from jupyter_elastic.driver.records import Records
from jupyter_elastic.driver.reports import Reports
from jupyter_elastic.driver.usage_sampler import UsageSampler
from jupyter_elastic.forkserver import forked_workers
from jupyter_elastic.forkserver.fork_client import our_source
from jupyter_elastic.hostfiles import host_providers, hosts_file, shared_hosts
from jupyter_elastic.hostfiles.host_providers import Target, UnreachableTarget
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts.connection.handshake import installed
from jupyter_elastic.hosts.remote_usage import RemoteUsage
from jupyter_elastic.jobfiles.attempt_folder import SOCKET_NAME, AttemptFolder
from jupyter_elastic.platform import entry_points, paths, private_files, processes
from jupyter_elastic.platform.enforced_end import KillTimer, make_fifo
from jupyter_elastic.protocol.driver_messages import DriverStarted, LeaseRenewed
from jupyter_elastic.protocol.host_agent_messages import FRAMEWORKS
from jupyter_elastic.types import (
    SAVE_GRACE_S,
    AttemptOrder,
    ExitReported,
    Launch,
    ProgressReported,
    ReleaseReported,
    Report,
    Rescale,
    Stop,
)
from jupyter_elastic.types.errors import BadRequest, ElasticError, EngineError

LOG_VARIABLE = "JUPYTER_ELASTIC_LOG"
"""Level of `driver.log`: DEBUG logs every message between driver and workers."""
FIFO_NAME = "driver.fifo"
"""FIFO by which the kernel ends the workers of an attempt with a lease when the driver is gone."""
LINGER_S = 3.0
"""Seconds that the driver waits for a connected agent to take the `ExitReported`; `exit.json` keeps the end."""
UNWRITTEN_LINGER_S = 60.0
"""`LINGER_S` for a driver that can't write `exit.json` (full disk)."""
STOP_GRACE_S = {"preempt": SAVE_GRACE_S, "time limit": 30.0, "cancel": 30.0}
"""Seconds that an engine may take to stop, by the reason, before the driver ends its processes itself."""
END_GRACE_S = 2.0
"""Seconds that processes left by an engine may take to end after SIGTERM."""

log = logging.getLogger(__name__)


def preload() -> None:
    """Load every engine before drivers are forked. The driver that needs an engine reports it if it can't be loaded."""
    for name in entry_points.installed(entry_points.ENGINES):
        with contextlib.suppress(Exception):
            load_engine(name)  # the forked drivers inherit the modules that `missing` searches
    installed(FRAMEWORKS)  # and those that `installed` imports
    our_source()


def load_engine(name: str) -> type[Engine]:
    """Return the engine of that name, by entry point; EngineError, with advice, if it is missing or lacks something."""
    engine = _load(name)
    if missing := engine.missing():
        raise EngineError(missing)
    return engine


def _check_servers(engine: Engine, servers: int) -> None:
    """Raise EngineError if an engine is given parameter servers but can't have any, or needs them and has none."""
    takes = engine.capabilities.takes_servers
    if servers and not takes:
        raise EngineError(f"the engine {engine.name!r} has no parameter servers; leave --servers out")
    if takes and not servers:
        raise EngineError(f"the engine {engine.name!r} needs a parameter server; ask for --servers 1 or more")


@functools.cache
def _load(name: str) -> type[Engine]:
    found = entry_points.installed(entry_points.ENGINES)
    if name not in found:
        have = ", ".join(sorted(found)) or "none"
        raise EngineError(f"there is no engine {name!r} in {sys.prefix}; installed: {have}. Choose one with --engine")
    engine: type[Engine] = entry_points.load(found[name])
    return engine


class Driver:
    """The life of one attempt, from its order to its `exit.json`."""

    def __init__(self, folder: AttemptFolder, launch: Launch, runtime: Path, renewed_at: float = 0.0) -> None:
        self.folder = folder
        self.launch = launch
        self.runtime = runtime
        self.orders = Orders(launch)
        self._remote_hosts = set(launch.remote_hosts)
        """Hosts of the attempt's slots that are other machines than the daemon's."""
        self._targets: dict[str, Target] = {}
        """The URLs of hosts, by name, as last read."""
        self.reports = Reports(launch)
        self._records = Records(folder, launch, self._pids)
        self._agents = AgentConnections(self.snapshot, self.accept)
        self._agent_watchdog = AgentWatchdog(launch.spec.python, self._agents.came)
        self._thread = threading.get_ident()
        self._loop: asyncio.AbstractEventLoop
        self._lease = AttemptLease(launch.lease_s, renewed_at) if launch.lease_s else None
        self._lease_end: asyncio.TimerHandle | None = None
        self._end_grace_s = END_GRACE_S
        self._kill: KillTimer
        self._engine: Engine | None = None
        self._ordered = asyncio.Event()
        self._all_gone = False
        """True when no process of the attempt lives and its end is on disk."""
        self._over = asyncio.Event()
        self._first: asyncio.Task[None]
        """Serves the agent that was connected from the start."""

    async def run(self, ready: Callable[[], None], agent: socket.socket | None = None) -> ExitReported:
        """Run the attempt to its end; return when no process of it lives and `exit.json` is written.

        `agent` is an open connection; `ready` is called before `agent` is used and before any worker starts. Later
        agents connect by the socket. OSError when order or socket can't be made.
        """
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._terminate)
        self.folder.create(self.launch)
        self._records.write_processes()
        path = private_files.private_dir(self.runtime) / SOCKET_NAME
        if self._lease is not None:
            make_fifo(self.runtime / FIFO_NAME)
            self._kill = KillTimer()
            self._keep_lease(self._lease)
        server = await asyncio.start_unix_server(self._agents.serve, path)  # replaces an earlier driver's
        ready()
        if agent is not None:
            self._first = asyncio.create_task(self._agents.serve(*await asyncio.open_connection(sock=agent)))
        sampler = UsageSampler(
            self.folder.job_folder,
            self._pids,
            lambda: self.orders.devices,
            lambda: self._engine.waits() if self._engine is not None else "",
            remote_usage=lambda: self._engine.remote_usage() if self._engine is not None else RemoteUsage(),
        )
        work = (self._run_engine(), self._records.keep_processes(), sampler.run(), self._agent_watchdog.run())
        tasks = [asyncio.create_task(one) for one in work]
        await self._over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ended = await self._finish()
        server.close()
        return ended

    # --- the engine

    async def _run_engine(self) -> None:
        """Launch, then give the engine one order after the other."""
        launch, stopped = self.launch, ""
        try:
            self._engine = completed(load_engine(launch.spec.engine))(self._context(), self.report)
            _check_servers(self._engine, launch.servers)
            await self._give(self._engine.launch, launch)
            while True:
                await self._ordered.wait()
                self._ordered.clear()
                how = self.orders.how
                if how and how != stopped:
                    stopped = how
                    self._loop.call_later(STOP_GRACE_S[how], self._stuck, "", STOP_GRACE_S[how])
                    await self._engine.stop(how)
                elif not stopped and (taken := self.orders.take()) is not None:
                    order, unheard = taken
                    await self._give(self._engine.rescale, order)
                    if unheard:
                        self._take(self.reports.release(unheard, self.orders.given))
        except Exception as problem:
            self._fail(problem)

    async def _give(self, take: Callable[..., Awaitable[None]], order: Launch | Rescale) -> None:
        servers = {"servers": order.servers} if order.servers else {}
        await take(order.generation, order.slots, order.devices, **servers)

    def report(self, report: Report) -> None:
        """Take a report as the engine's `SendReport`, from any thread."""
        if threading.get_ident() == self._thread:
            self._take(report)
        else:
            self._loop.call_soon_threadsafe(self._take, report)

    def _take(self, report: Report) -> None:
        if self.reports.exit is not None:
            log.warning("a report after the end: %s", report)
            return
        if isinstance(report, ExitReported):
            self._end(*self.orders.end(report), report)
            return
        if isinstance(report, ReleaseReported):
            self.orders.released(report.slots)
        elif isinstance(report, ProgressReported):
            self._records.append_progress(report)
        self._agents.send(self.reports.add(report, self.orders.given))

    def _end(self, outcome: str, reason: str, engines: ExitReported | None = None) -> None:
        self.reports.end(outcome, reason, engines)
        self._over.set()

    def _fail(self, problem: Exception) -> None:
        """End the attempt because the engine itself failed."""
        log.error("the engine failed", exc_info=problem)
        hint = "" if isinstance(problem, ElasticError) else self._missing()
        what = str(problem) if isinstance(problem, ElasticError) else f"{type(problem).__name__}: {problem}"
        self._end("failed", f"engine {self.launch.spec.engine!r}: {what}{hint and '; ' + hint}")

    def _missing(self) -> str:
        try:
            return self._engine.missing() if self._engine is not None else ""
        except Exception as problem:
            return f"{type(problem).__name__}: {problem}"

    def _stuck(self, why: str, grace_s: float) -> None:
        """End the attempt of an engine that did not stop in time; the end of `run` ends its processes."""
        outcome = ended_by(self.orders.stop) if self.orders.stop is not None else "lost"
        self._end(outcome, f"{why}the engine did not stop within {grace_s:.0f} s and was ended")

    def _context(self) -> AttemptContext:
        return AttemptContext(
            job=self.launch.job,
            attempt=self.launch.attempt,
            owner=self.launch.owner,
            folder=self.folder.job_folder,
            python=self.launch.spec.python,
            runtime=self.runtime,
            min_slots=self.launch.spec.min_slots,
            fifo=str(self.runtime / FIFO_NAME) if self._lease is not None else "",
            shared=self._lease is not None,
            max_workers=self.launch.spec.max_workers,
            hosts=self._hosts(),
            find_hosts=self._hosts,
        )

    def _hosts(self) -> tuple[Target, ...]:
        """Return the hosts: of a personal pool the user's, of a shared pool the administrator's.

        A host of the job that can't be read now, and never was before, gets no URL: the job loses that host alone.
        """
        file = shared_hosts.path() if self._lease is not None else paths.state_dir() / hosts_file.NAME
        without_url = dict.fromkeys(self._remote_hosts, f"{file}, which its user's drivers read, does not name it")
        hosts: tuple[HostAddress, ...] = ()
        try:
            hosts = hosts_file.read(paths.state_dir()) if self._lease is None else shared_hosts.read()
        except BadRequest as problem:
            without_url |= dict.fromkeys(self._remote_hosts, str(problem))
        for host in hosts:
            try:
                self._targets[host.name] = host_providers.parse(host)
            except BadRequest as problem:
                without_url[host.name] = str(problem)
        unknown = [
            UnreachableTarget(host=HostAddress(name=name, url=""), why=why)
            for name, why in without_url.items()
            if name not in self._targets
        ]
        return (*self._targets.values(), *unknown)

    def _pids(self) -> list[processes.ProcessId]:
        try:
            return list(self._engine.pids()) if self._engine is not None else []
        except Exception:
            log.exception("the engine doesn't know its processes")
            return self._records.recorded or []

    # --- the agent

    def accept(self, order: AttemptOrder | LeaseRenewed) -> None:
        """Take an agent's order."""
        if isinstance(order, LeaseRenewed):
            self._renew(order.at)
        elif self.orders.is_foreign(order):
            log.warning("an order for another attempt: %s", order)
        elif self.orders.accept(order):
            if not isinstance(order, Stop):
                self._remote_hosts.update(order.remote_hosts)
                self.reports.leased_again(order.slots)
            self._ordered.set()

    def snapshot(self) -> list[Report]:
        """Return the reports that still matter to an agent that connects."""
        end = [self.reports.exit] if self.reports.exit is not None and self._all_gone else []
        return [*self.reports.snapshot(self.orders.given), *end]

    def _terminate(self, why: str = "the driver was told to end (SIGTERM)") -> None:
        self.orders.terminated = self.orders.terminated or why
        self._ordered.set()

    # --- the lease

    def _renew(self, requested_at: float) -> None:
        if self._lease is not None and self._lease.renew(requested_at, time.monotonic()):
            self._keep_lease(self._lease)

    def _keep_lease(self, lease: AttemptLease) -> None:
        """End the attempt when the lease runs out; the kernel does so if this process fails to."""
        self._kill.set(lease.killed_at)
        if self._lease_end is not None:
            self._lease_end.cancel()
        self._lease_end = self._loop.call_at(lease.until, self._forfeit)

    def _forfeit(self) -> None:
        """Let the engine stop at a commit, as the lease has run out; end processes of a late engine."""
        why = f"its lease of {self.launch.lease_s:g} s was not renewed"
        self._end_grace_s = TERM_S
        self._terminate(why)
        self._loop.call_later(COMMIT_S, self._stuck, f"{why}, and ", COMMIT_S)

    # --- the end

    async def _finish(self) -> ExitReported:
        """End the processes that the engine left, write the end, and let the agent take it."""
        assert self.reports.exit is not None
        kept = self._engine.kept() if self._engine is not None else frozenset()  # a session's workers live on
        left = processes.living({*self._pids(), *(self._records.recorded or [])} - kept)
        if left:
            log.warning("ending %d processes that the engine left", len(left))
            await processes.end(left, self._end_grace_s)
            await forked_workers.cleared()
        try:
            self.folder.write_exit(self.reports.exit)
            linger_s, alone = LINGER_S, False
        except OSError as problem:
            log.warning("can't write exit.json, waiting for an agent that takes the end by word: %s", problem)
            linger_s, alone = UNWRITTEN_LINGER_S, not self._agents
        self._all_gone = True
        self._agents.send(self.reports.exit)
        await self._agent_watchdog.replace_killed()  # else no agent would report that the slots are free
        since = time.monotonic()
        while (self._agents or alone) and time.monotonic() - since < linger_s:
            alone = alone and not self._agents
            await asyncio.sleep(0.01)
        return self.reports.exit


def prepare() -> asyncio.Runner:
    """Set up logging, the adoption of processes that workers leave, and an event loop."""
    level = os.environ.get(LOG_VARIABLE, "INFO")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    forked_workers.adopt()
    return new_runner()


def new_runner() -> asyncio.Runner:
    """Return a runner, with its event loop made, for one attempt."""
    runner = asyncio.Runner()
    runner.get_loop()
    return runner


def run(
    runner: asyncio.Runner,
    folder: AttemptFolder,
    runtime: Path,
    launch: Launch,
    answer: Callable[[DriverStarted], None],
    agent: socket.socket | None = None,
    renewed_at: float = 0.0,
) -> int:
    """Be the driver of an attempt; return the exit code.

    `answer` is called once the order is on disk, or when the driver can't start. Of two drivers started for one attempt
    the second finds the lock taken and does nothing.
    """
    lock = folder.lock
    if not lock.acquire():
        answer(DriverStarted("", held=True))
        return 3
    if folder.exit() is not None:
        answer(DriverStarted("the attempt is over"))
        return 4
    try:
        with runner:
            runner.run(Driver(folder, launch, runtime, renewed_at).run(lambda: answer(DriverStarted("")), agent))
    finally:
        with contextlib.suppress(OSError):
            (runtime / SOCKET_NAME).unlink()
        lock.release()
    return 0
