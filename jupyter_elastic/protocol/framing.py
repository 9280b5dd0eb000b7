"""Frames byte streams between two processes of a user: agent and driver, driver and worker, forkservers.

A frame is a byte with the version, three bytes with the length (big endian), and the msgpack of a tagged struct. Knows
neither sockets nor event loops: the caller passes the reader. Pure.
"""

from __future__ import annotations

from typing import Any, BinaryIO, Generic, Protocol, TypeVar

import msgspec

from jupyter_elastic.types.errors import ProtocolError

VERSION = 1
"""Version of all messages on these streams; raised when a message changes its meaning."""
MAX_FRAME = 4 * 1024 * 1024
"""Maximum bytes of a frame; a longer one is refused unread. Three bytes of length could say 16 MiB."""
HEADER = 4

T = TypeVar("T")


class AsyncReader(Protocol):
    """The needed part of an `asyncio.StreamReader`."""

    async def readexactly(self, n: int, /) -> bytes:
        """Read exactly `n` bytes; EOFError when the stream ends before."""
        ...


class Frames(Generic[T]):
    """An encoder and a reader of messages of one type, mostly a union of tagged structs.

    `what` names the stream in errors; a `limit` below `MAX_FRAME` holds for sent and read messages.
    """

    def __init__(self, message: Any, what: str, limit: int = MAX_FRAME) -> None:
        self._what = what
        self._limit = limit
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(message)

    def encode(self, message: T) -> bytes:
        """Encode the message as a frame. ProtocolError when it is over the limit."""
        body = self._encoder.encode(message)
        self._check(len(body))
        return bytes([VERSION]) + len(body).to_bytes(HEADER - 1, "big") + body

    async def read(self, reader: AsyncReader) -> T | None:
        """Read the next message; None when the stream has ended, also within a frame. ProtocolError for a bad one."""
        try:
            size = self._size(await reader.readexactly(HEADER))
            return self._decode(await reader.readexactly(size))
        except (EOFError, ConnectionError):
            return None

    def receive(self, stream: BinaryIO) -> T | None:
        """Do the same as `read`, in a thread that blocks."""
        try:
            header = stream.read(HEADER)
            if len(header) < HEADER:
                return None
            size = self._size(header)
            body = stream.read(size)
        except ConnectionError:
            return None
        return self._decode(body) if len(body) == size else None

    def _size(self, header: bytes) -> int:
        if header[0] != VERSION:
            raise ProtocolError(
                f"{self._what}: the other side speaks version {header[0]} of the messages, this one {VERSION}; one of "
                "them runs another version of jupyter-elastic: end the job and submit it again"
            )
        size = int.from_bytes(header[1:], "big")
        self._check(size)
        return size

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise ProtocolError(f"{self._what}: a message of {size:,} bytes is over the limit of {self._limit:,}")

    def _decode(self, body: bytes) -> T:
        try:
            return self._decoder.decode(body)
        except msgspec.DecodeError as problem:
            raise ProtocolError(f"{self._what}: a message that can't be read: {problem}") from problem
