"""Serves the agents that connect to a driver: sends each a snapshot, then every report, and takes its orders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from jupyter_elastic.platform.peer import check_same_user
from jupyter_elastic.protocol.driver_messages import ORDERS, REPORTS, LeaseRenewed
from jupyter_elastic.types import AttemptOrder, Report
from jupyter_elastic.types.errors import ElasticError

MAX_UNSENT = 1024 * 1024
"""Bytes that may wait for an agent that doesn't read; beyond, it is disconnected (a snapshot awaits its return)."""

log = logging.getLogger(__name__)


class AgentConnections:
    """The connections of one driver."""

    def __init__(
        self, snapshot: Callable[[], Iterable[Report]], accept: Callable[[AttemptOrder | LeaseRenewed], None]
    ) -> None:
        self._snapshot = snapshot
        self._accept = accept
        self._connected: set[asyncio.StreamWriter] = set()
        self.came = asyncio.Event()
        """Set whenever an agent connects."""

    def __bool__(self) -> bool:
        return bool(self._connected)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve an agent until it hangs up; disconnect another user's agent, or one that sends invalid messages."""
        try:
            check_same_user(writer.get_extra_info("socket"))
            self._connected.add(writer)
            self.came.set()
            for report in self._snapshot():
                writer.write(REPORTS.encode(report))
            while (order := await ORDERS.read(reader)) is not None:
                self._accept(order)
        except (ElasticError, OSError) as problem:
            log.warning("connection dropped: %s", problem)
        finally:
            self._connected.discard(writer)
            writer.close()

    def send(self, report: Report) -> None:
        """Send a report to all connected agents."""
        frame = REPORTS.encode(report)
        for writer in list(self._connected):
            if writer.transport.get_write_buffer_size() > MAX_UNSENT:
                writer.transport.abort()
            else:
                writer.write(frame)
