"""Serves the key-value store through which Gloo's members find each other: opaque bytes over HTTP/1.0, one for a round.

Knows sockets and nothing of Horovod but the three verbs its client uses: PUT, DELETE, and GET, which here waits for its
key (the client would come again every 10 ms). Bound to 127.0.0.1, where it serves only sockets of its own user (which
the kernel is asked for); sizes and counts are limited; nothing is ever unpickled or executed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from jupyter_elastic.engines.common.key_values import KeyValues
from jupyter_elastic.platform.loopback_peer import is_own

MAX_VALUE = 1024 * 1024
"""Maximum bytes of one value; Gloo's are addresses of some hundred bytes."""
MAX_HEAD = 16 * 1024
MAX_CONNECTIONS = 512
WAIT_S = 1.0
"""Seconds that a GET waits for its key before it answers 404; the client asks again."""
IDLE_S = 10.0
"""Seconds after which a connection that has not sent its request is closed."""

log = logging.getLogger(__name__)


class Store:
    """One round's store. `port` is valid after `start`."""

    def __init__(self, initial: dict[str, bytes] | None = None) -> None:
        self.port = 0
        self.followers: dict[object, Callable[[str, bytes | None], None]] = {}
        """Callbacks that receive each change: of this store's copies on other hosts, or of the original."""
        self._values = KeyValues()
        self._values.update(initial or {})
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on a free port of the loopback interface."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD, backlog=256)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening and drop all waiting clients."""
        if self._server is not None:
            self._server.close()
        for task in list(self._serving):
            task.cancel()

    def values(self) -> dict[str, bytes]:
        """Return the present values."""
        return dict(self._values)

    def put(self, key: str, value: bytes | None, *, by: object = None) -> bool:
        """Set or remove a value, and send it to the followers other than `by`; return False if the store is full."""
        if value is None:
            self._values.pop(key, None)
        elif not self._values.put(key, value):
            return False
        for follower, tell in self.followers.items():
            if follower is not by:
                tell(key, value)
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            connected: socket.socket = writer.get_extra_info("socket")
            if len(self._serving) > MAX_CONNECTIONS or not is_own(connected):
                log.warning("refused a connection to the store from %s", writer.get_extra_info("peername"))
                return
            status, body = await self._answer(reader)
            head = f"HTTP/1.0 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # not a client of ours, or one that died
        except asyncio.CancelledError:
            pass  # closed: the server's own task ends with it
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, bytes]:
        async with asyncio.timeout(IDLE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        request, *lines = head.decode("latin-1").split("\r\n")
        words = request.split(" ")
        if len(words) != 3:
            return "400 Bad Request", b""
        verb, key, _ = words
        if verb == "GET":
            value = await self._values.wait(key, WAIT_S)
            return ("404 Not Found", b"") if value is None else ("200 OK", value)
        if verb == "DELETE":
            self.put(key, None)
            return "200 OK", b""
        if verb != "PUT":
            return "405 Method Not Allowed", b""
        fields = {name.strip().lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
        text = fields.get("content-length", "")
        if not text.isdecimal() or int(text) > MAX_VALUE:
            return "413 Content Too Large", b""
        async with asyncio.timeout(IDLE_S):
            value = await reader.readexactly(int(text))
        return "200 OK" if self.put(key, value) else "507 Insufficient Storage", b""
