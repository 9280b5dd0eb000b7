"""Tests whether one host can connect to another, by a token; finds the address and interface that it would use."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import os
import socket

from jupyter_elastic.types.errors import EngineError

DIAL_S = 2.0
"""Timeout of a connection, in seconds."""
ANSWER_S = 5.0
"""Timeout of the connected end's answer, in seconds: it may be busy."""
LISTEN_S = 8.0
_YES = b"yes"


async def listen(address: str, token: bytes) -> int:
    """Wait at this address, for some seconds, for a peer with the token; return the port. OSError on failure."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                if hmac.compare_digest(await reader.readexactly(len(token)), token):
                    writer.write(_YES)
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(connected, address, 0)
    asyncio.get_running_loop().call_later(LISTEN_S, server.close)
    return int(server.sockets[0].getsockname()[1])


async def dial(address: str, port: int, token: bytes) -> str:
    """Send the token there; return why it could not be delivered, empty on success."""
    try:
        async with asyncio.timeout(DIAL_S):
            reader, writer = await asyncio.open_connection(address, port)
        try:
            async with asyncio.timeout(ANSWER_S):
                writer.write(token)
                return "" if await reader.read(len(_YES)) == _YES else "somebody else answers there"
        finally:
            writer.close()
    except TimeoutError:
        return "no answer in time"
    except OSError as problem:
        return os.strerror(problem.errno) if problem.errno else str(problem)


def toward(address: str) -> str:
    """Return this host's address for connections to `address`. ValueError for no address, OSError without route."""
    if ipaddress.ip_address(address).is_loopback:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect((address, 9))  # sends nothing: says by which interface it would
        return str(asked.getsockname()[0])


def interface(address: str) -> str:
    """Return the interface that has the address; its name differs from host to host. EngineError when none has it."""
    if ipaddress.ip_address(address).is_loopback:
        return "lo"
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.family == socket.AF_INET and entry.address == address for entry in entries):
            return name
    raise EngineError(f"no interface of {socket.gethostname()} has the address {address}")
