"""Serves the group's stores to the workers of this host: as copies of the driver's, or by connections to it.

Knows the stores' messages; must not know what a store holds, or how messages travel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from jupyter_elastic.engines.horovod.store import Store
from jupyter_elastic.platform.peer import check_same_user
from jupyter_elastic.protocol import host_agent_messages as messages
from jupyter_elastic.protocol.host_agent_messages import FromHostAgent
from jupyter_elastic.types.errors import NotAllowed

MAX_CONNECTIONS = 512

log = logging.getLogger(__name__)


class StoreServers:
    """The stores of one attempt. `carry` sends what is read from a connection to the driver, until its end."""

    def __init__(
        self,
        folder: Path,
        streams: dict[int, asyncio.StreamWriter],
        say: Callable[[FromHostAgent], None],
        carry: Callable[[int, asyncio.StreamReader], Coroutine[Any, Any, None]],
    ) -> None:
        self._folder = folder
        self._streams = streams
        """Writers of the data that come from the driver, by channel."""
        self._say = say
        self._carry = carry
        self._connections = 0
        self._last_connection = 0
        """Channel of the last connection; the driver's channels are odd."""
        self._servers: dict[int, asyncio.Server | Store] = {}

    def add_copy(self, number: int, values: dict[str, bytes]) -> Store:
        """Return a new copy of the driver's store, which takes part in each change from now on."""
        copy = self._servers[number] = Store(values)
        copy.followers[self] = lambda key, value: self._say(messages.StoreValue(number, key, value))
        return copy

    def put(self, number: int, key: str, value: bytes | None) -> None:
        """Set or remove a value of a store's copy, as the driver did."""
        if isinstance(store := self._servers.get(number), Store):
            store.put(key, value, by=self)

    def close(self, number: int) -> None:
        """Close the store of a finished round."""
        if (server := self._servers.pop(number, None)) is not None:
            server.close()

    async def serve_copy(self, number: int, copy: Store) -> None:
        """Serve the store's copy: a worker waits for a value here, without a round trip to the driver."""
        try:
            await copy.start()
        except OSError as problem:
            self._say(messages.HostRefused(f"no store can be opened there: {problem}"))
            return
        self._say(messages.Forwarding(number, copy.port))

    async def forward(self, order: messages.Forward) -> None:
        """Listen where workers look for their group's store, which is the driver's."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not self._is_ours(writer) or self._connections >= MAX_CONNECTIONS:
                writer.close()
                return
            self._connections += 1
            channel = self._last_connection = self._last_connection + 2
            self._streams[channel] = writer
            self._say(messages.Connected(order.number, channel))
            try:
                await self._carry(channel, reader)
                await writer.wait_closed()
            except OSError:
                pass  # the connection broke
            finally:
                self._connections -= 1
                self._streams.pop(channel, None)
                writer.close()

        path = self._folder / f"store.{order.number}"
        try:
            server = await asyncio.start_unix_server(connected, path)
            path.chmod(0o600)
        except OSError as problem:
            self._say(messages.HostRefused(f"no store can be opened there: {problem}"))
            return
        self._servers[order.number] = server
        self._say(messages.Forwarding(order.number, path=str(path)))

    def _is_ours(self, writer: asyncio.StreamWriter) -> bool:
        try:
            check_same_user(writer.get_extra_info("socket"))
        except (NotAllowed, OSError) as problem:
            log.warning("refused a connection to the store: %s", problem)
            return False
        return True
