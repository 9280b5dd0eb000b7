"""The words between agent and driver on the attempt's UNIX socket, and how they are framed.

The driver sends reports, the agent orders, each as four bytes of length (big endian) and msgpack. Both belong to
one user, which the driver checks by the socket's peer credentials. On connect the driver sends a snapshot, so nothing
is lost when one side was away; the agent says that it took the `ExitReported` by closing the connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import TypeVar

import msgspec

from jupyter_elastic.errors import NotAllowed, ProtocolError
from jupyter_elastic.types import AnyEffect, Report

MAX_FRAME = 4 * 1024 * 1024
"""Bytes."""
SOCKET_NAME = "driver.sock"

_T = TypeVar("_T")
_length = struct.Struct(">I")
_peer = struct.Struct("3i")
_encoder = msgspec.msgpack.Encoder()
_orders = msgspec.msgpack.Decoder(AnyEffect)
_reports = msgspec.msgpack.Decoder(Report)


def listen(runtime: Path) -> socket.socket:
    """The driver's socket, listening; whatever an earlier driver left there is replaced."""
    path = runtime / SOCKET_NAME
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(8)
    return listener


def check_peer(connected: socket.socket) -> None:
    """NotAllowed unless the other side runs as the same user as we."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _peer.size)
    _, uid, _ = _peer.unpack(raw)
    if uid != os.getuid():
        raise NotAllowed(f"user {uid} may not speak to a driver of user {os.getuid()}")


def frame(message: Report | AnyEffect) -> bytes:
    """A message as it goes over the socket."""
    body = _encoder.encode(message)
    return _length.pack(len(body)) + body


async def read_order(reader: asyncio.StreamReader) -> AnyEffect | None:
    """The agent's next order; None when it closed the connection."""
    body = await _read(reader)
    return None if body is None else _decode(_orders, body)


async def read_report(reader: asyncio.StreamReader) -> Report | None:
    """The driver's next report; None when it is gone."""
    body = await _read(reader)
    return None if body is None else _decode(_reports, body)


def _decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as problem:
        raise ProtocolError(f"agent and driver don't understand each other: {problem}") from problem


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    try:
        (size,) = _length.unpack(await reader.readexactly(_length.size))
        if size > MAX_FRAME:
            raise ProtocolError(f"a frame of {size:,} bytes is over the limit of {MAX_FRAME:,}")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
