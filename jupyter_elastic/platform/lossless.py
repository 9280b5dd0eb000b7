"""Opens an asyncio stream over a socket that loses nothing that its peer sent before closing."""

from __future__ import annotations

import asyncio
import contextlib
import socket

CHUNK = 64 * 1024


async def open_lossless(connected: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect like `asyncio.open_connection(sock=connected)`, but keep received data when the peer is gone.

    asyncio drops a stream with all unread data when a write fails. A peer that sends its last message and leaves at
    once would lose it if anything is written to it in that moment.
    """
    loop = asyncio.get_running_loop()
    reader = _Reader(connected.dup())
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, sock=connected)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class _Reader(asyncio.StreamReader):
    """A reader that takes remaining data from another descriptor of the socket, for asyncio closes its own."""

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
