"""Carries byte streams between this host and another over one connection, a channel for each.

Knows the messages of a channel; must not know what the bytes mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from jupyter_elastic.protocol import host_agent_messages as messages
from jupyter_elastic.protocol.host_agent_messages import PIECE, ToHostAgent


class _Stream:
    """The data that come from the host agent on one channel, kept until a writer is attached."""

    def __init__(self, writer: asyncio.StreamWriter | None = None) -> None:
        self._writer = writer
        self._waiting: list[bytes] = []
        self._closed = False

    def write(self, data: bytes) -> None:
        if self._writer is None:
            self._waiting.append(data)
        else:
            self._writer.write(data)

    def attach(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        for data in self._waiting:
            writer.write(data)
        self._waiting.clear()
        if self._closed:
            writer.close()

    def close(self) -> None:
        self._closed = True
        if self._writer is not None:
            self._writer.close()


class Channels:
    """The open channels of one connection; `send` sends a message to the host agent."""

    def __init__(self, send: Callable[[ToHostAgent], None]) -> None:
        self._send = send
        self._streams: dict[int, _Stream] = {}

    def add(self, channel: int, writer: asyncio.StreamWriter | None = None) -> None:
        """Open a channel; what comes on it goes to `writer`, or is kept until `connect`."""
        self._streams[channel] = _Stream(writer)

    def write(self, channel: int, data: bytes) -> None:
        """Write what has come on a channel."""
        if (stream := self._streams.get(channel)) is not None:
            stream.write(data)

    def end(self, channel: int) -> None:
        """Close the writer of a channel whose other end has no more to send."""
        if (stream := self._streams.get(channel)) is not None:
            stream.close()

    def remove(self, channel: int) -> None:
        """Close a channel, and forget it."""
        self._streams.pop(channel, _Stream()).close()

    def close(self) -> None:
        """Close all channels."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()

    async def connect(self, channel: int, path: str) -> None:
        """Carry a connection that a worker there has made to a UNIX socket here."""
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError:
            self._streams.pop(channel, None)
            self._send(messages.End(channel))
            return
        self._streams[channel].attach(writer)
        try:
            await self.carry(channel, reader)
        finally:
            self.remove(channel)

    async def carry(self, channel: int, reader: asyncio.StreamReader) -> None:
        """Send what is read here to the other end of the channel."""
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                self._send(messages.Data(channel, data))
        self._send(messages.End(channel))
