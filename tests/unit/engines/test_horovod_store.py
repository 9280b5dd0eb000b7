"""The store that Gloo's members meet at: three verbs, waiting GETs, limits, and only its own user."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import pytest

from jupyter_elastic.engines.common import key_values
from jupyter_elastic.engines.horovod import store as store_module
from jupyter_elastic.engines.horovod.store import Store
from jupyter_elastic.platform import loopback_peer
from jupyter_elastic.platform.loopback_peer import is_own


async def ask(store: Store, request: bytes) -> tuple[bytes, bytes]:
    """Status and body of an answer; empty when the connection is closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", store.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0].removeprefix(b"HTTP/1.0 ")[:3], body


async def put(store: Store, key: str, value: bytes) -> bytes:
    return (await ask(store, f"PUT {key} HTTP/1.1\r\nContent-Length: {len(value)}\r\n\r\n".encode() + value))[0]


async def get(store: Store, key: str) -> tuple[bytes, bytes]:
    return await ask(store, f"GET {key} HTTP/1.1\r\n\r\n".encode())


def with_store(test: Callable[[Store], Awaitable[None]], **initial: bytes) -> None:
    async def run() -> None:
        store = Store({f"/{key}": value for key, value in initial.items()})
        await store.start()
        try:
            await test(store)
        finally:
            store.close()

    asyncio.run(run())


def test_verbs() -> None:
    async def test(store: Store) -> None:
        assert await get(store, "/given") == (b"200", b"first")
        blob = bytes(range(256)) * 1000
        assert await put(store, "/a/b", blob) == b"200"
        assert await get(store, "/a/b") == (b"200", blob)
        assert await ask(store, b"DELETE /a/b HTTP/1.0\r\n\r\n") == (b"200", b"")
        assert (await ask(store, b"POST /a/b HTTP/1.0\r\n\r\n"))[0] == b"405"

    with_store(test, given=b"first")


def test_get_waits_for_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WAIT_S", 60.0)

    async def test(store: Store) -> None:
        waiting = asyncio.create_task(get(store, "/late"))
        await asyncio.sleep(0.02)
        await put(store, "/other", b"no")
        assert not waiting.done()
        await put(store, "/late", b"here")
        assert await waiting == (b"200", b"here")

    with_store(test)


def test_copies_have_what_is_put_into_any_of_them_and_lose_what_is_removed() -> None:
    async def test(store: Store) -> None:
        copies = [Store(store.values()) for _ in range(2)]
        for copy in copies:
            await copy.start()
            store.followers[copy] = lambda key, value, copy=copy: copy.put(key, value, by=store)
            copy.followers[store] = lambda key, value, copy=copy: store.put(key, value, by=copy)
        waiting = asyncio.create_task(get(copies[1], "/late"))
        await put(copies[0], "/late", b"here")
        assert await waiting == (b"200", b"here")
        await put(store, "/own", b"mine")
        expected = {"/given": b"first", "/late": b"here", "/own": b"mine"}
        assert [one.values() for one in (store, *copies)] == [expected] * 3
        await ask(copies[0], b"DELETE /late HTTP/1.0\r\n\r\n")
        del expected["/late"]
        assert [one.values() for one in (store, *copies)] == [expected] * 3
        for copy in copies:
            copy.close()

    with_store(test, given=b"first")


def test_get_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WAIT_S", 0.01)

    async def test(store: Store) -> None:
        assert await get(store, "/never") == (b"404", b"")

    with_store(test)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_values, "MAX_KEYS", 2)
    monkeypatch.setattr(key_values, "MAX_TOTAL", 1000)
    monkeypatch.setattr(store_module, "MAX_VALUE", 900)

    async def test(store: Store) -> None:
        assert await put(store, "/a", bytes(901)) == b"413"
        assert await put(store, "/a", bytes(900)) == b"200"
        assert await put(store, "/b", bytes(101)) == b"507"
        assert await put(store, "/a", bytes(10)) == b"200"  # what is replaced doesn't count
        assert await put(store, "/b", bytes(101)) == b"200"
        assert await put(store, "/c", b"") == b"507"

    with_store(test)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"PUT /x HTTP/1.0\r\nContent-Length: -1\r\n\r\n",
        b"PUT /x HTTP/1.0\r\nContent-Length: 9999999999999\r\n\r\n",
        b"PUT /x HTTP/1.0\r\n\r\n",
        b"\x80\x04\x95" + b"\xff" * 70_000,
    ],
)
def test_garbage_is_refused_and_changes_nothing(garbage: bytes) -> None:
    async def test(store: Store) -> None:
        status, body = await ask(store, garbage)
        assert status in {b"", b"400", b"413"}
        assert body == b""
        assert await get(store, "/kept") == (b"200", b"1")
        assert list(store._values) == ["/kept"]

    with_store(test, kept=b"1")


def test_whose_socket() -> None:
    """Both ways of asking the kernel agree, and a socket that does not exist is nobody's."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as mine:
        theirs, _ = listener.accept()
        with theirs:
            ends = theirs.getpeername(), theirs.getsockname()
            assert is_own(theirs)
            assert mine.getsockname() == ends[0]
            assert loopback_peer._uid_by_netlink(*ends) == loopback_peer._uid_by_table(*ends)
            nowhere = ("127.0.0.1", 1), ends[1]
            assert loopback_peer._uid_by_table(*nowhere) is None
            with pytest.raises(OSError, match="no such socket"):
                loopback_peer._uid_by_netlink(*nowhere)


def test_somebody_elses_socket_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_peer.os, "getuid", lambda: 12345)

    async def test(store: Store) -> None:
        with contextlib.suppress(ConnectionResetError):
            assert await get(store, "/kept") == (b"", b"")

    with_store(test, kept=b"1")
