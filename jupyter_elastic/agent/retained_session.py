"""Watches a session that retains slots after its cell: reports when its workers are gone, and ends them on order.

The workers end by themselves at the session's limit; this module ends those that don't (stopped by a signal), and those
whose slots are wanted back. Knows the session's folder; must not know cells.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from jupyter_elastic.agent.outbox import Ask, Outbox
from jupyter_elastic.jobfiles import sessions
from jupyter_elastic.jobfiles.sessions import SessionFolder
from jupyter_elastic.platform import processes
from jupyter_elastic.types import ReleaseReported, Stop, WatchRetention

LATE_S = 10.0
"""Seconds after the session's limit at which workers that have not ended by themselves are ended."""

log = logging.getLogger(__name__)


class RetainedSession:
    """The slots that one ended cell's session retains."""

    def __init__(
        self, order: WatchRetention, ask: Ask, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.order = order
        self._ask = ask
        self._sleep = sleep
        self._folder = SessionFolder(order.session)
        self._end = asyncio.Event()
        self._why = ""

    def end(self, order: Stop) -> None:
        """End the session now."""
        self._why = self._why or order.reason or "its slots were wanted back"
        self._end.set()

    async def run(self) -> None:
        """Return when the session's workers are gone and the daemon has acknowledged it."""
        session = await asyncio.to_thread(self._folder.read)
        members = self._folder.members(session) if session is not None else []
        gone = asyncio.ensure_future(self._all_gone([member.known for member in members]))
        limit = asyncio.ensure_future(self._sleep(max(self.order.until - time.time(), 0.0) + LATE_S))
        wanted = asyncio.ensure_future(self._end.wait())
        try:
            await asyncio.wait([gone, limit, wanted], return_when=asyncio.FIRST_COMPLETED)
            if not gone.done() and session is not None:
                why = self._why or "no cell came, and its slots are not kept longer"
                log.info("ending the session %s: %s", self.order.session, why)
                self._folder.end(why)
                await asyncio.to_thread(sessions.end_left, self._folder, session)
                await gone
        finally:
            for one in (gone, limit, wanted):
                one.cancel()
        await self._report()

    async def _all_gone(self, members: list[processes.ProcessId]) -> None:
        for known in members:
            await processes.gone(known)

    async def _report(self) -> None:
        order = self.order
        outbox = Outbox(self._ask, owner=order.owner)
        sender = asyncio.create_task(outbox.run())
        try:
            outbox.put(ReleaseReported(job=order.job, attempt=order.attempt, slots=order.slots))
            await outbox.empty()
        finally:
            sender.cancel()
