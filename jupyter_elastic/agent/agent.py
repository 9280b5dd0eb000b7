"""Runs the user's agent: handles the daemon's orders as that user, and adopts running attempts after its own restart.

Each user has one agent per pool, held by a lock. Knows the client, attempts and forkservers; must not know policies or
the daemon's state. An agent can be killed at any time: its drivers go on, the next agent adopts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

from jupyter_elastic.agent import origin
from jupyter_elastic.agent.attempt import Attempt
from jupyter_elastic.agent.retained_session import RetainedSession
from jupyter_elastic.client import AsyncClient
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.forkserver import drivers, forked_workers, parents
from jupyter_elastic.forkserver.drivers import DriverLauncher
from jupyter_elastic.hostfiles import host_failures
from jupyter_elastic.hosts.autoalloc.allocator import Allocator
from jupyter_elastic.jobfiles import captures, session_limits
from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder, attempts
from jupyter_elastic.platform import endpoints, paths, private_files, processes
from jupyter_elastic.platform.endpoints import AgentRecord
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.platform.logs import Format
from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol.wire import (
    VERSION,
    AnyAsk,
    FailedHost,
    Hello,
    Jobs,
    LeasesRenewed,
    ListJobs,
    RenewLeases,
    ReportArrived,
    ReportFailedHosts,
)
from jupyter_elastic.types import AnyEffect, AttemptOrder, ExitReported, Launch, Stop, WatchRetention
from jupyter_elastic.types.errors import ElasticError, NotAllowed, ProtocolError

DAEMON_GONE_S = 600.0
"""Seconds without an answer from the daemon after which an agent with nothing running ends."""
IDLE_S = 900.0
"""Seconds with nothing to do, and no process of its user that may need it, after which the agent ends."""
PING_S = 10.0
"""Maximum seconds between renewals of the leases, which also tell whether the daemon answers."""
REMOVE_CAPTURES_S = 600.0
"""Seconds between removals of the captures of ended jobs."""
HOSTS_S = 5.0
"""Seconds between checks whether the queue needs hosts on demand."""
NOTES_S = 0.5
"""Seconds between reads of the drivers' notes about hosts that can't be reached, or can again."""
NEEDED_S = 5.0
"""Timeout in seconds of the request whether a job of the user waits."""
MAX_UNFINISHED = 500
"""Limit of the list of unfinished jobs. The daemon may have cut a list of this length: then nothing is removed."""

log = logging.getLogger(__name__)


class _Leave(Exception):
    """Ends the agent's tasks."""


class Agent:
    """The handler of the daemon's orders for one user. `monotonic` and `sleep` are the clock.

    `log_as` is called with the format of the daemon's log. An agent that leaves because nobody needs it holds the lock
    `clients`; its process must keep that lock until another agent can start.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        clients: Lock | None = None,
        leave_after_s: float = DAEMON_GONE_S,
        idle_s: float = IDLE_S,
        ping_s: float = PING_S,
        log_as: Callable[[Format], None] = lambda _kind: None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.client = client
        self._clients = clients or Lock(paths.clients_lock())
        self._leave_after_s = leave_after_s
        self._idle_s = idle_s
        self._used = monotonic()
        """Time at which an attempt or session last ran."""
        self._ping_s = ping_s
        self._log_as = log_as
        self._monotonic = monotonic
        self._sleep = sleep
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self._retained: dict[tuple[int, int], tuple[RetainedSession, asyncio.Task[None]]] = {}
        """Retentions of slots by sessions, by the ended attempt."""
        self._drivers = DriverLauncher()
        self._allocator = Allocator(client.ask)
        self._refusal = ""
        self._hosts_told: object = None
        """Failed hosts as last reported to the daemon."""
        self._term_s = 0.0
        """Term in seconds of the leases that the daemon gives now."""

    @property
    def owner(self) -> str:
        """The user's name as the daemon gives it; a UNIX id need not have a name on this host."""
        return self.client.welcome.user if self.client.welcome is not None else ""

    def _about(self, job: int | None = None, attempt: int | None = None) -> dict[str, Any]:
        """Return the log record's fields: user, job and attempt."""
        return {"user": self.owner, "job": job, "attempt": attempt}

    async def run(self) -> None:
        """Adopt what runs, then handle orders until the daemon is gone for good and nothing runs."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._handle_orders())
                self._tasks.create_task(self._warm())
                self._tasks.create_task(self._bring_hosts())
                self._tasks.create_task(self._keep_telling_failed_hosts())
                await self._watch_daemon()
        except* _Leave as why:
            log.info("leaving: %s", why.exceptions[0], extra=self._about())
        finally:
            self._allocator.close()
            parents.send_away(parents.found(paths.runtime_dir()))

    def adopt(self) -> None:
        """Take over every attempt whose driver was started and whose end is not recorded."""
        for folder in attempts(paths.jobs_dir()):
            if folder.exit() is None and (record := folder.record()) is not None:
                key = (record.job, record.attempt)
                log.info("adopting job %d attempt %d", *key, extra=self._about(*key))
                self._begin(*key, folder)

    def handle(self, effect: AnyEffect) -> None:
        """Handle an order. Any order may come repeatedly, also after the attempt's end: that end is then repeated."""
        key = (effect.job, effect.attempt)
        if isinstance(effect, WatchRetention):
            self._watch_retention(effect)
        elif key in self._retained and isinstance(effect, Stop):
            self._retained[key][0].end(effect)
        elif key in self._attempts:
            self._attempts[key].order(effect)
        elif isinstance(effect, Launch):
            self._hand_on(effect)
            self._begin(*key, AttemptFolder.of(effect.spec.folder, effect.attempt), effect)
        else:
            self._begin(*key, self._find(*key), effect)

    def _watch_retention(self, order: WatchRetention) -> None:
        key = (order.job, order.attempt)
        if key not in self._retained:
            session = RetainedSession(order, self.client.ask)
            task = self._tasks.create_task(self._run_retained(session))
            self._retained[key] = session, task
            task.add_done_callback(lambda _done: self._retained.pop(key, None))

    async def _run_retained(self, session: RetainedSession) -> None:
        try:
            await session.run()
        except Exception:
            # Its order comes again when the daemon or we restart.
            order = session.order
            log.exception("the session %s", order.session, extra=self._about(order.job, order.attempt))

    def _hand_on(self, launch: Launch) -> None:
        """Stop watching the retained slots that the session's next cell has now."""
        for session, task in list(self._retained.values()):
            if session.order.session == launch.spec.session and set(session.order.slots) <= set(launch.slots):
                task.cancel()

    def _begin(self, job: int, number: int, folder: AttemptFolder | None, order: AttemptOrder | None = None) -> None:
        attempt = Attempt(job, number, self.owner, self._ask, self._drivers.start)
        if order is not None:
            attempt.order(order)
        self._attempts[job, number] = attempt
        launch = order if isinstance(order, Launch) else None
        self._tasks.create_task(self._run_attempt(attempt, folder, launch))

    async def _run_attempt(self, attempt: Attempt, folder: AttemptFolder | None, launch: Launch | None) -> None:
        key = (attempt.job, attempt.number)
        try:
            await attempt.run(folder, launch)
        except Exception:
            # Its order comes again when the daemon or we restart.
            log.exception("job %d attempt %d", *key, extra=self._about(*key))
        finally:
            self._attempts.pop(key, None)

    def _find(self, job: int, number: int) -> AttemptFolder | None:
        """Find the folder of an attempt of which only the order's job and number are known."""
        for folder in attempts(paths.jobs_dir()):
            if folder.path.name == f"attempt.{number}":
                launch = folder.order()
                if launch is not None and launch.job == job:
                    return folder
        return None

    async def _warm(self) -> None:
        """Start this interpreter's forkservers, of drivers and of workers without frameworks, before a job comes."""
        for forkserver in (drivers.address(sys.executable), forked_workers.address(sys.executable, os.environ, ())):
            try:
                await asyncio.to_thread(forkserver.warm_up)
            except (ElasticError, OSError) as problem:
                log.warning(
                    "a forkserver of %s could not be started: %s", forkserver.kind, problem, extra=self._about()
                )

    async def _handle_orders(self) -> None:
        await self.client.welcomed.wait()  # before the Welcome another agent may own the running attempts
        if self.client.welcome is not None:
            self._log_as(self.client.welcome.log_format)
        self.adopt()
        async for effect in self.client.orders():
            try:
                self.handle(effect)
            except Exception:
                log.exception("order %s", effect, extra=self._about(effect.job, effect.attempt))

    async def _watch_daemon(self) -> NoReturn:
        """Renew the leases repeatedly; raise `_Leave` when nobody needs this agent any more."""
        answered = self._monotonic()
        removed_at = -REMOVE_CAPTURES_S
        while True:
            try:
                await self._renew_leases(timeout_s=self._pause_s())
                answered = self._monotonic()
                if answered - removed_at > REMOVE_CAPTURES_S:
                    removed_at = answered
                    self._tasks.create_task(self._remove_captures())  # it may take long
                await self._leave_unless_needed()
            except (NotAllowed, ProtocolError):  # the daemon answers, but no longer accepts this agent
                answered = self._monotonic()
                if not self.client.refusal:
                    self.client.introduce()
            except ElasticError:
                silent_s = self._monotonic() - answered
                if not (self._attempts or self._retained) and (silent_s > self._leave_after_s or not _is_ours()):
                    raise _Leave(f"no daemon for {silent_s:.0f} s and nothing runs") from None
            self._ask_to_be_accepted()
            await self._sleep(self._pause_s())  # by the lease term of the last answer

    def _pause_s(self) -> float:
        """Seconds until the next renewal: at most a third of the shortest lease term."""
        terms = (self._term_s, *(attempt.lease_s for attempt in self._attempts.values()))
        return min([self._ping_s, self._idle_s, *(term_s / 3 for term_s in terms if term_s)])

    async def _renew_leases(self, timeout_s: float) -> None:
        """Report the live attempts to the daemon, and end those that hold no slots any more."""
        attempts, asked = dict(self._attempts), self._monotonic()
        answer = await self.client.ask(RenewLeases(attempts=tuple(attempts)), timeout_s=timeout_s)
        renewed = expect(answer, LeasesRenewed)
        self._term_s = renewed.lease_s
        if renewed.warm:
            kept = parents.found(paths.runtime_dir(), kinds=(parents.WORKERS,))
            parents.send_away(parents.surplus(kept, renewed.warm, parents.max_memory()))
        if renewed.sessions:
            with contextlib.suppress(OSError):  # a full disk: the limits written before still hold
                session_limits.write(paths.runtime_dir(), renewed.sessions, renewed.parked_mb)
        for key, attempt in attempts.items():
            if key in renewed.held:
                attempt.renewed(asked)
            else:
                attempt.forfeit()

    async def _leave_unless_needed(self) -> None:
        """Raise `_Leave` if nothing has run for `idle_s`, no job waits, and no process may need this agent.

        Such processes share a lock (`client.services`). A process that comes while the agent holds the lock exclusively
        waits until the agent is gone.
        """
        if self._attempts or self._retained or self._allocator.needed:
            self._used = self._monotonic()
        if self._monotonic() - self._used < self._idle_s or not self._clients.acquire(attempts=1):
            return
        try:
            answer = await self.client.ask(ListJobs(owner=self.owner, limit=1), timeout_s=NEEDED_S)
            needed = bool(self._attempts or expect(answer, Jobs).jobs)
        except ElasticError:
            needed = True  # not known
        if not needed:
            raise _Leave(f"nothing has run for {self._idle_s:.0f} s, and nobody is there")
        self._clients.release()

    async def _bring_hosts(self) -> None:
        """Manage the hosts on demand, for ever; log each problem once."""
        said = ""
        while True:
            await asyncio.sleep(HOSTS_S)
            welcome = self.client.welcome
            if welcome is None or welcome.shared or welcome.pool != str(paths.state_dir()):
                continue  # a shared pool's administrator names its hosts
            try:
                await self._allocator.look()
                said = ""
            except (ElasticError, OSError) as problem:
                if str(problem) != said:
                    said = str(problem)
                    log.warning("hosts on demand: %s", said, extra=self._about())

    async def _ask(self, ask: AnyAsk) -> Any:
        """Send an attempt's request; report failed hosts before a lost end: the next attempt avoids them so."""
        if isinstance(ask, ReportArrived) and isinstance(ask.report, ExitReported) and ask.report.outcome == "lost":
            await self._tell_failed_hosts()
        return await self.client.ask(ask)

    async def _keep_telling_failed_hosts(self) -> None:
        while True:
            await asyncio.sleep(NOTES_S)
            await self._tell_failed_hosts()

    async def _tell_failed_hosts(self) -> None:
        """Report to a shared pool its hosts that this user can't reach, as drivers noted them in files.

        The report is repeated for each connection: a restarted daemon has forgotten it.
        """
        welcome = self.client.welcome
        if welcome is None or not welcome.shared:
            return
        now = id(welcome), host_failures.read(paths.runtime_dir())
        if now == self._hosts_told or (self._hosts_told is None and not now[1]):
            return
        hosts = {name: FailedHost(why=one.why, again_at=one.again_at) for name, one in now[1].items()}
        with contextlib.suppress(ElasticError):  # the report is repeated
            await self.client.ask(ReportFailedHosts(hosts=hosts))
            self._hosts_told = now

    async def _remove_captures(self) -> None:
        """Remove the captures of ended jobs."""
        try:
            answer = await self.client.ask(ListJobs(owner=self.owner, limit=MAX_UNFINISHED))
            if not isinstance(answer, Jobs) or len(answer.jobs) >= MAX_UNFINISHED:
                return
            unfinished = [info.spec.folder for info in answer.jobs]
            if gone := await asyncio.to_thread(captures.sweep, paths.jobs_dir(), unfinished):
                log.info("removed the captures of %d jobs that are over", gone, extra=self._about())
        except (ElasticError, OSError) as problem:
            log.warning("captures of jobs that are over could not be removed: %s", problem, extra=self._about())

    def _ask_to_be_accepted(self) -> None:
        """If the daemon has another agent of this user, log that and introduce this agent again: the other may end."""
        if not self.client.refusal:
            return
        if self.client.refusal != self._refusal:
            self._refusal = self.client.refusal
            log.warning("this agent waits: %s", self._refusal, extra=self._about())
        self.client.hello = hello(take_over=self.client.hello.take_over)
        self.client.introduce()


def hello(*, take_over: bool) -> Hello:
    """Return the message by which this agent introduces itself to the daemon."""
    return Hello(version=VERSION, role="agent", place=origin.here(), alone=origin.nobody_drives(), take_over=take_over)


def _is_ours() -> bool:
    """Return whether the pool's folder still exists and names this process as its agent."""
    path = os.environ.get(paths.DIR_VARIABLE)
    if path and not Path(path).exists():
        return False
    record = private_files.read_json(paths.agent_file(), AgentRecord)
    return record is not None and record.pid == os.getpid()


async def serve(
    endpoint: str | None,
    clients: Lock,
    *,
    take_over: bool,
    idle_s: float,
    arguments: tuple[str, ...],
    log_as: Callable[[Format], None],
) -> None:
    """Run the agent. The caller holds the agent's lock, and releases it before `clients`.

    `take_over`: replace an agent in another container or on another host, whose drivers are all gone. `arguments`: for
    the agent that drivers start when this one ends without removing its record (`paths.agent_file`). `log_as`: called
    with the format of the daemon's log.
    """
    pid, started = processes.this_process()
    record = AgentRecord(
        pid=pid,
        start_time=started,
        package=__version__,
        python=sys.executable,
        arguments=arguments,
        endpoint=endpoints.find(endpoint).endpoint,
    )
    private_files.write_json(paths.agent_file(), record)
    client = AsyncClient(endpoint, role="agent")
    client.hello = hello(take_over=take_over)
    async with client:
        log.info("agent %s of user %d, process %d", __version__, os.getuid(), pid)
        await Agent(client, clients=clients, idle_s=idle_s, log_as=log_as).run()
