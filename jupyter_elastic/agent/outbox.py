"""Reports of one attempt on their way to the daemon: in order, each until it is acknowledged.

Knows which refusals are final; must not know drivers. Progress that waits is replaced by newer progress, everything
else is kept: a daemon that comes back after an hour learns what it has to know, and no more.
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
"""Asks the daemon; the answer, which of a report says that it is acknowledged. Raises ElasticError."""

RETRY_S = (0.05, 2.0)
"""First and longest pause between two tries."""

log = logging.getLogger(__name__)


class Outbox:
    """A queue with one sender; `run` it as a task."""

    def __init__(self, ask: Ask, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._ask = ask
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
        """Come back when everything is acknowledged."""
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
                log.warning("the daemon refuses %s: %s", report, problem, extra=_about(report))
                return
            except ElasticError as problem:  # away, full disk, ...: the report stays true
                log.info("not delivered yet, %s", problem, extra=_about(report))
                await self._sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
            else:
                return


def _about(report: Report) -> dict[str, Any]:
    """What a line of the log is about."""
    return {"user": report.by, "job": report.job, "attempt": report.attempt}
