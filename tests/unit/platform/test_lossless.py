"""What a peer sent before it left is read, whatever is written to it meanwhile."""

from __future__ import annotations

import asyncio
import socket

import pytest

from jupyter_elastic.platform.lossless import open_lossless


@pytest.mark.parametrize("unread", [b"", b"never read"], ids=["gone", "gone with something unread"])
def test_last_words_of_a_peer_are_read_although_a_write_to_it_fails(unread: bytes) -> None:
    words = b"last words" * 100_000

    async def story() -> tuple[bytes, bytes]:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * len(words))
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(words))
        theirs.setblocking(False)
        reader, writer = await open_lossless(ours)
        first = theirs.send(words)
        writer.write(unread)
        theirs.close()
        writer.write(b"too late")
        found = await reader.read()
        writer.close()
        return words[:first], found

    sent, found = asyncio.run(story())
    assert found == sent


def test_an_ordinary_end_is_the_end() -> None:
    async def story() -> bytes:
        ours, theirs = socket.socketpair()
        reader, writer = await open_lossless(ours)
        with theirs:
            theirs.sendall(b"done")
        found = await reader.read()
        writer.close()
        await writer.wait_closed()
        return found

    assert asyncio.run(story()) == b"done"
