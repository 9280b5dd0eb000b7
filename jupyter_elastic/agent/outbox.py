"""Sends the reports of one attempt to the daemon: in order, each until it is acknowledged.

Knows which refusals are final; must not know drivers. Newer progress replaces progress that waits, all other reports
are kept: a daemon that is back after an hour gets what it has to know, and no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from jupyter_elastic.protocol.wire import AnyAsk, ReportArrived
from jupyter_elastic.types import ProgressReported, Report
from jupyter_elastic.types.errors import BadRequest, ElasticError, NotAllowed, NotFound

Ask: TypeAlias = Callable[[AnyAsk], Awaitable[Any]]
"""Sends a request to the daemon; the answer to a report is its acknowledgement. Raises ElasticError."""

RETRY_S = (0.05, 2.0)
"""First and longest pause between two tries, in seconds."""

log = logging.getLogger(__name__)


class Outbox:
    """A queue of reports with one sender; run `run` as a task."""

    def __init__(self, ask: Ask, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, *, owner: str = "") -> None:
        self._ask = ask
        self._owner = owner
        """User of the jobs, for the log."""
        self._sleep = sleep
        self._waiting: deque[Report] = deque()
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, report: Report) -> None:
        """Queue a report."""
        last = self._waiting[-1] if self._waiting else None
        if isinstance(report, ProgressReported) and isinstance(last, ProgressReported) and len(self._waiting) > 1:
            self._waiting[-1] = report  # the first one may be on its way
        else:
            self._waiting.append(report)
        self._idle.clear()
        self._changed.set()

    async def empty(self) -> None:
        """Return when every report is acknowledged."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send what is queued until cancelled."""
        while True:
            while self._waiting:
                await self._deliver(self._waiting[0])
                self._waiting.popleft()
            self._idle.set()
            self._changed.clear()
            await self._changed.wait()

    async def _deliver(self, report: Report) -> None:
        pause_s = RETRY_S[0]
        while True:
            try:
                await self._ask(ReportArrived(report=report))
            except (NotFound, BadRequest, NotAllowed) as problem:
                log.warning("the daemon refuses %s: %s", report, problem, extra=self._about(report))
                return
            except ElasticError as problem:  # away, full disk, ...: the report stays true
                log.info("not delivered yet, %s", problem, extra=self._about(report))
                await self._sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
            else:
                return

    def _about(self, report: Report) -> dict[str, Any]:
        """Return the log record's fields: user, job and attempt."""
        return {"user": self._owner, "job": report.job, "attempt": report.attempt}
