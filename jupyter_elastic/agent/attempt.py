"""Manages one attempt: starts or finds its driver, passes orders on, sends its reports to the daemon.

Knows the attempt's folder, the driver's socket and the outbox; must not know the daemon's state. An attempt that has
begun is ended exactly once, whichever process dies in between: the driver's lock keeps a second driver away, the file
`exit.json` records the end, and if a driver dies before it has written that file, the agent ends the driver's workers
before the slots are given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

from jupyter_elastic.agent.outbox import Ask, Outbox
from jupyter_elastic.driver.orders import ended_by
from jupyter_elastic.driver.reports import exit_report
from jupyter_elastic.forkserver import forked_workers
from jupyter_elastic.forkserver.drivers import DriverProcess
from jupyter_elastic.jobfiles.attempt_folder import SOCKET_NAME, AttemptFolder
from jupyter_elastic.platform import processes
from jupyter_elastic.protocol.driver_messages import ORDERS, REPORTS, LeaseRenewed, StartDriver
from jupyter_elastic.protocol.wire import LeasesRenewed, RenewLeases
from jupyter_elastic.types import ExitReported, Launch, Rescale, Stop
from jupyter_elastic.types.errors import ElasticError, EngineError

DriverStarter: TypeAlias = Callable[[StartDriver], Awaitable[DriverProcess | None]]
"""Starts the driver of an attempt; returns None if the attempt has one already."""

UNREACHABLE_S = 30.0
"""Seconds of failed connections after which the agent ends a live driver, which no order to stop would reach."""

log = logging.getLogger(__name__)


class Attempt:
    """An attempt, from its first order (or its discovery on disk) to its acknowledged end."""

    def __init__(self, job: int, number: int, owner: str, ask: Ask, start_driver: DriverStarter) -> None:
        self.job = job
        self.number = number
        self.owner = owner
        self._start_driver = start_driver
        self._outbox = Outbox(ask, owner=owner)
        self._rescale: Launch | Rescale | None = None
        self._stop: Stop | None = None
        self._driver: asyncio.StreamWriter | None = None
        self._ask = ask
        self._lease_s = 0.0
        self._renewed_at = 0.0
        self._log = logging.LoggerAdapter(log, {"user": owner, "job": job, "attempt": number})

    def order(self, effect: Rescale | Stop | Launch) -> None:
        """Pass an order on to the driver, now or as soon as the driver listens. Repeated orders are harmless."""
        if isinstance(effect, Stop):
            self._stop = effect
        elif self._rescale is None or effect.generation > self._rescale.generation:
            self._rescale = effect
        if self._driver is not None:
            self._driver.write(ORDERS.encode(effect))

    @property
    def lease_s(self) -> float:
        """Term of the attempt's lease in seconds; 0 without a lease."""
        return self._lease_s

    def renewed(self, requested_at: float) -> None:
        """Record that a request sent at `requested_at` (`time.monotonic()`) renewed the lease; notify the driver."""
        self._renewed_at = requested_at
        if self._driver is not None and self._lease_s:
            self._driver.write(ORDERS.encode(LeaseRenewed(requested_at)))

    def forfeit(self) -> None:
        """Stop the attempt after a commit, because the daemon reports that the attempt holds no slots any more."""
        if self._stop is None:
            self._log.warning("job %d attempt %d holds no slots any more and is ended", self.job, self.number)
            reason = "the pool had given its slots away"
            self.order(Stop(job=self.job, attempt=self.number, owner=self.owner, how="preempt", reason=reason))

    async def run(self, folder: AttemptFolder | None, launch: Launch | None = None) -> ExitReported:
        """Run the attempt to its end; return when the daemon has acknowledged the end.

        `folder` is None for an attempt without files, which was stopped before it began. With `launch` a driver is
        started, unless the attempt has one.
        """
        sender = asyncio.create_task(self._outbox.run())
        try:
            end = await self._run_driver(folder, launch)
            self._log.info("job %d attempt %d: %s %s", self.job, self.number, end.outcome, end.reason)
            self._outbox.put(end)
            await self._outbox.empty()
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        if folder is not None and self._is_own(folder):
            folder.clear_runtime()
        return end

    async def _run_driver(self, folder: AttemptFolder | None, launch: Launch | None) -> ExitReported:
        if folder is None:
            return self._ended("lost", "the agent has no trace of this attempt")
        if not self._is_own(folder):
            return self._intruded(folder)
        if (end := folder.exit()) is not None:
            return end
        order = launch or folder.order()
        self._lease_s = order.lease_s if order is not None else 0.0
        driver = None
        try:
            started = await self._start(folder, launch) if launch is not None else None
            driver = started.process if started is not None else await self._find(folder)
        except (ElasticError, OSError) as problem:
            end = self._ended("failed", str(problem))
        else:
            end = await self._follow(folder, driver, started) if driver is not None else None
        if not self._is_own(folder):  # another job's attempt may have taken the folder meanwhile
            return self._intruded(folder)
        end = end or folder.exit() or await self._clean_up(folder, driver)
        with contextlib.suppress(OSError):
            folder.write_exit(end)
        return end

    async def _start(self, folder: AttemptFolder, launch: Launch) -> DriverProcess | None:
        """Start the attempt's driver; None if the attempt has a driver, has been stopped or holds no slots any more."""
        if folder.record() is not None or self._stop is not None:
            return None
        check_spec(launch)
        if launch.lease_s and not await self._holds_slots():
            return None
        folder.path.mkdir(mode=0o700, exist_ok=True)
        return await self._start_driver(StartDriver(str(folder.path), str(folder.runtime), launch, self._renewed_at))

    async def _holds_slots(self) -> bool:
        """Renew the lease, and return whether the attempt still holds its slots.

        The launch order may be out of date: this process may have been suspended between receiving and handling it.
        """
        asked = time.monotonic()
        try:
            answer = await self._ask(RenewLeases(attempts=((self.job, self.number),)))
        except ElasticError as problem:
            self._log.warning("job %d attempt %d: its lease can't be renewed: %s", self.job, self.number, problem)
            return False
        self._renewed_at = asked
        return isinstance(answer, LeasesRenewed) and bool(answer.held)

    async def _find(self, folder: AttemptFolder) -> processes.ProcessId | None:
        """Find the driver that an earlier agent has started; None if it is dead or never existed."""
        # a driver that holds the lock has either written its pid, or will soon, or dies and frees the lock
        while folder.lock.holder() is not None:
            if (record := folder.record()) is not None:
                break
            await asyncio.sleep(0.02)
        record = folder.record()
        return record.driver if record is not None and self._is_own(folder) else None

    async def _follow(
        self, folder: AttemptFolder, driver: processes.ProcessId, started: DriverProcess | None
    ) -> ExitReported | None:
        """Exchange orders and reports with the driver until it reports the end; None if it died before that."""
        gone = asyncio.create_task(processes.gone(driver))
        unreachable_since = time.monotonic()
        try:
            while True:
                try:
                    path = str(folder.runtime / SOCKET_NAME)
                    reader, self._driver = started[1:] if started else await asyncio.open_unix_connection(path)
                    started = None
                    if (end := await self._listen(reader)) is not None:
                        return end
                    unreachable_since = time.monotonic()
                except (OSError, ElasticError) as problem:
                    if time.monotonic() - unreachable_since > UNREACHABLE_S and not gone.done():
                        self._log.error("driver %d can't be reached and is ended: %s", driver[0], problem)
                        await processes.end([driver], grace_s=5.0)
                finally:
                    if self._driver is not None:
                        self._driver.close()  # tells the driver that its report of the end has arrived
                        self._driver = None
                if gone.done():
                    return None
                await asyncio.wait([gone], timeout=0.1)
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    async def _listen(self, reader: asyncio.StreamReader) -> ExitReported | None:
        assert self._driver is not None
        for order in (LeaseRenewed(self._renewed_at) if self._lease_s else None, self._rescale, self._stop):
            if order is not None:
                self._driver.write(ORDERS.encode(order))
        while (report := await REPORTS.read(reader)) is not None:
            if isinstance(report, ExitReported):
                return report
            self._outbox.put(report)
        return None

    async def _clean_up(self, folder: AttemptFolder, driver: processes.ProcessId | None) -> ExitReported:
        """End the workers of a driver that died before it wrote `exit.json`; return the attempt's end."""
        record = folder.record()
        left = list(record.workers) if record is not None else []
        if left:
            self._log.warning("job %d: the driver is gone, ending its workers %s", self.job, [pid for pid, _ in left])
            await processes.end(left)
        if driver is None:
            return self._ended("lost", "the attempt was not started")
        await forked_workers.cleared()
        last_line = folder.last_log_line()
        return self._ended("lost", f"the driver (process {driver[0]}) died{': ' + last_line if last_line else ''}")

    def _is_own(self, folder: AttemptFolder) -> bool:
        """Return whether the folder's files are this attempt's, or absent; another job may use the same folder."""
        return folder.whose() in {None, (self.job, self.number)}

    def _intruded(self, folder: AttemptFolder) -> ExitReported:
        """Return the end of an attempt in another job's folder, whose files are neither used nor changed."""
        other, _ = folder.whose() or (0, 0)
        reason = f"{folder.job_folder} is the folder of job {other}; submit the job again, with a folder of its own"
        return self._ended("failed", reason)

    def _ended(self, outcome: Any, reason: str) -> ExitReported:
        """Return an end that no driver reported; a lost attempt that was stopped has the outcome of that stop."""
        if self._stop is not None and outcome == "lost":
            outcome, reason = ended_by(self._stop), self._stop.reason or reason
        return exit_report(self.job, self.number, outcome, reason)


def check_spec(launch: Launch) -> None:
    """Raise EngineError unless the job's folder is this user's and its interpreter this user's or the system's.

    The agent checks this itself, because it runs as the user and must not rely on the daemon's message alone.
    """
    folder, python = Path(launch.spec.folder), Path(launch.spec.python)
    try:
        info = folder.lstat()
    except OSError as problem:
        raise EngineError(
            f"the job's folder {folder} can't be read by this user's agent ({problem.strerror}); it is on "
            f"{socket.gethostname()}, process {os.getpid()}: submit the job from where it sees the same files"
        ) from problem
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o022:
        raise EngineError(f"{folder} is not a private folder of this user; submit the job again")
    try:
        owner = python.stat().st_uid
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise EngineError(
            f"the job's interpreter {python} can't be started ({reason}); submit it again from a kernel that runs"
        ) from problem
    if owner not in {0, os.getuid()} or not python.is_absolute() or not os.access(python, os.X_OK):
        raise EngineError(f"{python} is not an interpreter of this user or of the system; choose another kernel")
