"""Whether one host reaches another: one listens for a token, the other brings it. And by which address it would."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import os
import socket

from jupyter_elastic.types.errors import EngineError

DIAL_S = 2.0
"""How long a connection may take."""
ANSWER_S = 5.0
"""How long the other end, which is there, may take to answer: it may be busy."""
LISTEN_S = 8.0
_YES = b"yes"


async def listen(address: str, token: bytes) -> int:
    """Wait at this address, for some seconds, for somebody who says the token; the port. OSError when that fails."""

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
    """Bring the token there; why it can't be brought, empty: it was."""
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
    """This host's own address on the way there. ValueError for what is no address, OSError without a way."""
    if ipaddress.ip_address(address).is_loopback:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect((address, 9))  # sends nothing: says by which interface it would
        return str(asked.getsockname()[0])


def interface(address: str) -> str:
    """The interface that has the address; its name differs from host to host. EngineError when none has it."""
    if ipaddress.ip_address(address).is_loopback:
        return "lo"
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.family == socket.AF_INET and entry.address == address for entry in entries):
            return name
    raise EngineError(f"no interface of {socket.gethostname()} has the address {address}")
