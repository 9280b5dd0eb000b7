"""An asyncio stream over a socket that loses nothing of what its peer sent before it closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket

CHUNK = 64 * 1024


async def open_lossless(connected: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As `asyncio.open_connection(sock=connected)`, but what has arrived is read although the peer is gone.

    asyncio gives up a stream with all that is unread when a write fails. Who sends its last words and leaves at once
    would lose them to anything that is written to it in that moment.
    """
    loop = asyncio.get_running_loop()
    reader = _Reader(connected.dup())
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, sock=connected)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class _Reader(asyncio.StreamReader):
    """Reads what is left by another descriptor of the socket, for asyncio closes its own."""

    def __init__(self, spare: socket.socket) -> None:
        super().__init__()
        spare.setblocking(False)
        self._spare = spare

    def set_exception(self, exc: Exception) -> None:
        if isinstance(exc, OSError):
            with contextlib.suppress(OSError):
                while data := self._spare.recv(CHUNK):
                    self.feed_data(data)
            self.feed_eof()
        else:
            super().set_exception(exc)

    def feed_eof(self) -> None:
        self._spare.close()
        super().feed_eof()
