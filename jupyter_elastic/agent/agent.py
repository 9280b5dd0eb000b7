"""The user's agent: carries out the daemon's orders as that user, and finds what still runs after its own restart.

One per user and pool, held by a lock. Knows the client, attempts and forkservers; must not know policies or the
daemon's state. It can be killed at any time: drivers go on, the next agent adopts them.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import sys
import time
from collections import OrderedDict
from pathlib import Path

import msgspec
from msgspec import Struct

from jupyter_elastic._version import __version__
from jupyter_elastic.agent import place
from jupyter_elastic.agent.attempt import Attempt
from jupyter_elastic.client import AsyncClient
from jupyter_elastic.errors import ElasticError
from jupyter_elastic.forkserver import drivers, parents, workers
from jupyter_elastic.forkserver.drivers import DriverLauncher, DriverProcess
from jupyter_elastic.jobfiles import captures
from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder, attempts
from jupyter_elastic.platform import paths, private_files, processes
from jupyter_elastic.protocol.wire import VERSION, Hello, Jobs, ListJobs, Ping, ReportArrived
from jupyter_elastic.types import AnyEffect, ExitReported, Launch

DAEMON_GONE_S = 600.0
"""With nothing running, the agent leaves when no daemon has answered for so long."""
REMEMBERED = 1000
"""Ends kept in memory, to answer repeated orders; older ones are found on disk."""

SWEEP_S = 600.0
"""How often it is looked which captures of jobs that are over are to go."""
MOST_UNFINISHED = 500
"""The daemon may leave some out of a longer list: then nothing is removed."""

log = logging.getLogger(__name__)


class AgentRecord(Struct, frozen=True, kw_only=True):
    """`agent.json`."""

    pid: int
    start_time: float
    package: str
    python: str


class Agent:
    """Everything that this user's jobs need in this pool."""

    def __init__(
        self,
        client: AsyncClient,
        *,
        alone_s: float = DAEMON_GONE_S,
        look_s: float = 10.0,
    ) -> None:
        self.client = client
        self.alone_s = alone_s
        self.look_s = look_s
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: OrderedDict[tuple[int, int], ExitReported] = OrderedDict()
        self._drivers = DriverLauncher()
        self._refusal = ""

    @property
    def owner(self) -> str:
        """Our user, as the daemon names us."""
        return self.client.welcome.user if self.client.welcome is not None else getpass.getuser()

    @property
    def live(self) -> int:
        """Attempts that are not over yet."""
        return len(self._attempts)

    async def run(self) -> None:
        """Adopt what runs, then carry out orders until the daemon is gone for good and nothing runs."""
        orders = asyncio.create_task(self._orders())
        warm = asyncio.create_task(self._warm())
        try:
            await self._until_alone()
        finally:
            for task in (orders, warm, *self._tasks):
                task.cancel()
            await asyncio.gather(orders, warm, *self._tasks, return_exceptions=True)
            parents.send_away(parents.found(paths.runtime_dir()))

    def adopt(self) -> None:
        """Take over every attempt whose driver was started and whose end is not written."""
        for folder in attempts(paths.jobs_dir()):
            if folder.exit() is None and (record := folder.record()) is not None:
                log.info("adopting job %d attempt %d", record.job, record.attempt)
                self._begin(record.job, record.attempt, folder)

    def carry_out(self, effect: AnyEffect) -> None:
        """Carry out an order; every order may come more than once."""
        key = (effect.job, effect.attempt)
        attempt = self._attempts.get(key)
        seen = attempt.exit if attempt is not None else self._over.get(key)
        if seen is not None:
            self._spawn(self._repeat(seen))
        elif attempt is not None:
            attempt.order(effect)
        elif isinstance(effect, Launch):
            folder = AttemptFolder.of(effect.spec.folder, effect.attempt)
            self._begin(*key, folder, launch=effect)
        else:
            self._begin(*key, self._find(*key), order=effect)

    def _begin(
        self,
        job: int,
        number: int,
        folder: AttemptFolder | None,
        *,
        launch: Launch | None = None,
        order: AnyEffect | None = None,
    ) -> None:
        attempt = Attempt(job, number, self.owner, self._ask, self._start_driver)
        if launch is not None or order is not None:
            attempt.order(launch or order)  # type: ignore[arg-type]
        self._attempts[job, number] = attempt
        self._spawn(self._see_through(attempt, folder, launch))

    async def _see_through(self, attempt: Attempt, folder: AttemptFolder | None, launch: Launch | None) -> None:
        key = (attempt.job, attempt.number)
        try:
            self._remember(await attempt.live(folder, launch))
        except Exception:
            log.exception("job %d attempt %d", *key)  # its order comes again when the daemon or we restart
        finally:
            self._attempts.pop(key, None)

    async def _repeat(self, seen: ExitReported) -> None:
        try:
            await self._ask(ReportArrived(seen=seen))
        except ElasticError as problem:
            log.info("not repeated, %s", problem)

    def _remember(self, seen: ExitReported) -> None:
        self._over[seen.job, seen.attempt] = seen
        while len(self._over) > REMEMBERED:
            self._over.popitem(last=False)

    def _find(self, job: int, number: int) -> AttemptFolder | None:
        """The folder of an attempt that only its order names."""
        for folder in attempts(paths.jobs_dir()):
            if folder.path.name == f"attempt.{number}":
                launch = folder.order()
                if launch is not None and launch.job == job:
                    return folder
        return None

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, report: ReportArrived) -> object:
        return await self.client.ask(report)

    async def _start_driver(self, folder: AttemptFolder, launch: Launch) -> DriverProcess | None:
        return await self._drivers.start(launch.spec.python, folder.path, folder.runtime, launch)

    async def _warm(self) -> None:
        """Have the forkservers of this interpreter, of drivers and of workers without frameworks, run before a job."""
        for forkserver in (drivers.address(sys.executable), workers.address(sys.executable, os.environ, ())):
            try:
                await asyncio.to_thread(forkserver.warm_up)
            except (ElasticError, OSError) as problem:
                log.warning("a forkserver of %s could not be started: %s", forkserver.kind, problem)

    async def _orders(self) -> None:
        await self.client.welcomed.wait()  # what another agent runs is not ours to see to
        self.adopt()
        async for effect in self.client.orders():
            try:
                self.carry_out(effect)
            except Exception:
                log.exception("order %s", effect)

    async def _until_alone(self) -> None:
        answered = time.monotonic()
        swept = -SWEEP_S
        while True:
            try:
                await self.client.ask(Ping(), timeout_s=self.look_s)
                answered = time.monotonic()
                if answered - swept > SWEEP_S:
                    swept = answered
                    await self._sweep()
            except ElasticError:
                alone_s = time.monotonic() - answered
                if not self._attempts and (alone_s > self.alone_s or not _is_ours()):
                    log.info("no daemon for %.0f s and nothing runs: leaving", alone_s)
                    return
            self._insist()
            await asyncio.sleep(self.look_s)

    async def _sweep(self) -> None:
        """Remove what cells had captured whose jobs have long been over."""
        answer = await self.client.ask(ListJobs(limit=MOST_UNFINISHED))
        if isinstance(answer, Jobs) and len(answer.jobs) < MOST_UNFINISHED:
            unfinished = [info.spec.folder for info in answer.jobs]
            try:
                if gone := await asyncio.to_thread(captures.sweep, paths.jobs_dir(), unfinished):
                    log.info("removed the captures of %d jobs that are over", gone)
            except OSError as problem:
                log.warning("captures of jobs that are over could not be removed: %s", problem)

    def _insist(self) -> None:
        """Where another agent is the user's: say so, and ask again, for that one may end."""
        if not self.client.refusal:
            return
        if self.client.refusal != self._refusal:
            self._refusal = self.client.refusal
            log.warning("this agent waits: %s", self._refusal)
        self.client.hello = hello(take_over=self.client.hello.take_over)
        self.client.introduce()


def hello(*, take_over: bool) -> Hello:
    """What this agent says of itself."""
    return Hello(version=VERSION, role="agent", place=place.here(), alone=place.nobody_drives(), take_over=take_over)


def _is_ours() -> bool:
    """Whether the pool's folder still exists with us as its agent."""
    path = os.environ.get(paths.DIR_VARIABLE)
    if path and not Path(path).exists():
        return False
    try:
        record = msgspec.json.decode(paths.agent_file().read_bytes(), type=AgentRecord)
    except (OSError, msgspec.DecodeError):
        return False
    return record.pid == os.getpid()


async def serve(endpoint: str | None = None, *, take_over: bool = False) -> None:
    """Be the agent; the lock is held by the caller. `take_over`: nothing of an agent elsewhere runs any more."""
    pid, started = processes.myself()
    record = AgentRecord(pid=pid, start_time=started, package=__version__, python=sys.executable)
    private_files.write_private(paths.agent_file(), msgspec.json.encode(record))
    client = AsyncClient(endpoint, role="agent")
    client.hello = hello(take_over=take_over)
    async with client:
        log.info("agent %s of %s, process %d", __version__, getpass.getuser(), pid)
        await Agent(client).run()
