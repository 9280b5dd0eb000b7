"""The store of the engine `torch`: what a `torch.distributed.Store` must do, limits, rounds, and only its own user."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from jupyter_elastic.engines.common import key_values
from jupyter_elastic.engines.torch import messages
from jupyter_elastic.engines.torch.messages import ANSWERS, REQUESTS, StoreAnswer
from jupyter_elastic.engines.torch.store_server import StoreServer

SECOND = dt.timedelta(seconds=1)


def with_server(test: Callable[[StoreServer], Awaitable[None]], folder: Path) -> None:
    async def run() -> None:
        server = StoreServer(folder / "store")
        try:
            await test(server)
        finally:
            server.close()

    asyncio.run(run())


async def ask(folder: Path, *requests: messages.Request) -> list[StoreAnswer | None]:
    reader, writer = await asyncio.open_unix_connection(folder / "store")
    answers = []
    for request in requests:
        writer.write(REQUESTS.encode(request))
        if not isinstance(request, messages.Open):
            answers.append(await ANSWERS.read(reader))
    writer.close()
    return answers


def test_it_is_a_store_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import torch.distributed as dist

    from jupyter_elastic.engines.torch.store_client import GroupStore

    def use(address: messages.StoreAddress) -> None:
        store = dist.PrefixStore("p", kept := GroupStore(address, SECOND))  # through C++, as torch asks it
        store.set("a", "1")
        assert store.get("a") == b"1"
        assert [store.add("n", 2), store.add("n", 40)] == [2, 42]
        assert store.check(["a", "n"])
        assert not store.check(["a", "b"])
        assert store.compare_set("c", "", "first") == b"first"
        assert store.compare_set("c", "other", "second") == b"first"
        assert store.compare_set("c", "first", "second") == b"second"
        assert store.num_keys() == 3
        assert store.delete_key("a")
        assert not store.delete_key("a")
        store.wait(["n", "c"], SECOND)
        with pytest.raises(dist.DistStoreError, match=r"within 0\.01 s"):
            store.wait(["n", "nobody"], dt.timedelta(seconds=0.01))
        assert kept.clone().get("p/c") == b"second"

    async def test(server: StoreServer) -> None:
        await asyncio.to_thread(use, await server.begin(1))

    with_server(test, tmp_path)


def test_the_end_of_a_round_frees_who_waits_in_it(tmp_path: Path) -> None:
    async def test(server: StoreServer) -> None:
        await server.begin(1)
        waiting = asyncio.create_task(ask(tmp_path, messages.Open(1), messages.Get("a", 600.0)))
        server.end(7)  # another round
        assert (await ask(tmp_path, messages.Open(1), messages.Set("b", b"1")))[0] == StoreAnswer(b"1")
        server.end(1)
        assert await waiting == [None]
        assert await ask(tmp_path, messages.Open(1), messages.Get("b", 0.0)) == [None]
        await server.begin(2)
        assert await ask(tmp_path, messages.Open(2), messages.Get("b", 0.0)) == [StoreAnswer(None)]
        assert await ask(tmp_path, messages.Open(1), messages.Get("b", 0.0)) == [None]

    with_server(test, tmp_path)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_values, "MAX_KEYS", 2)
    monkeypatch.setattr(key_values, "MAX_TOTAL", 100)

    async def test(server: StoreServer) -> None:
        await server.begin(1)
        enough = messages.Set("a", bytes(90))
        for more in (messages.Set("b", bytes(20)), messages.Add("a", 1)):
            kept, refused = await ask(tmp_path, messages.Open(1), enough, more)
            assert kept is not None
            assert not kept.refused
            assert refused is not None
            assert refused.refused
        third = await ask(tmp_path, messages.Open(1), messages.Set("b", b""), messages.Set("c", b""))
        assert third[1] is not None
        assert "full: 2 keys" in third[1].refused
        for bad in (messages.Set("k" * 2000, b""), messages.Set("k", bytes(messages.MAX_VALUE + 1)),
                    messages.Get("a", -1.0)):  # fmt: skip
            assert await ask(tmp_path, messages.Open(1), bad) == [None]
        assert await ask(tmp_path, messages.Get("a", 0.0)) == [None]  # it has not said for which round

    with_server(test, tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_is_sent_away(tmp_path: Path) -> None:
    code = (
        "import os, socket, sys\nos.setuid(65534)\ns = socket.socket(socket.AF_UNIX)\ntry: s.connect(sys.argv[1])\n"
        "except PermissionError: print('no entry'); sys.exit()\n"
        "try: s.sendall(bytes.fromhex(sys.argv[2])); answer = s.recv(100)\nexcept ConnectionError: answer = b''\n"
        "print(answer or 'sent away')"
    )

    async def test(server: StoreServer) -> None:
        await server.begin(1)
        said = (REQUESTS.encode(messages.Open(1)) + REQUESTS.encode(messages.Count())).hex()
        for mode, answer in ((0o600, "no entry"), (0o666, "sent away")):
            (tmp_path / "store").chmod(mode)
            command = [sys.executable, "-c", code, str(tmp_path / "store"), said]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
            assert done.stdout.strip() == answer

    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    with_server(test, tmp_path)
