"""Pickles posted to every port that a running job opens: none runs, and the job goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.horovod.store import Store
from jupyter_elastic.platform import paths
from tests.live.engine.bench import TORCH, Bench, asynchronous, check_training, needs


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.path}",))


def post(address: tuple[str, int] | str, data: bytes) -> None:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family) as client:
        client.settimeout(0.3)
        client.connect(address)
        client.sendall(data)
        client.recv(4096)


def ports(pids: list[int]) -> set[tuple[str, int]]:
    return {
        (found.laddr.ip, found.laddr.port)
        for pid in pids
        for found in psutil.Process(pid).net_connections("inet")
        if found.status == psutil.CONN_LISTEN
    }


@needs("torch")
@asynchronous
async def test_no_port_runs_a_pickle(folder: Path) -> None:
    evidence = folder / "executed"
    evil = pickle.dumps(Evil(evidence))
    assert pickle.loads(evil) == 0
    assert evidence.exists()  # the weapon works
    evidence.unlink()
    async with Bench(Horovod, folder, TORCH, out=("steps", "weights")) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        workers = [pid for pid, _ in bench.engine.pids()]
        store = [("127.0.0.1", store.port) for store in bench.engine._stores]
        assert set(store) <= ports([os.getpid()])
        assert all(ip == "127.0.0.1" for ip, _ in ports([os.getpid(), *workers]))
        length = f"Content-Length: {len(evil)}\r\n\r\n".encode()
        for key in (b"/worker_addresses/w0", b"/global/0", b"/rank_and_size/w0:0", b"/x"):
            for verb in (b"PUT ", b"POST ", b"GET "):
                for address in store:
                    post(address, verb + key + b" HTTP/1.0\r\n" + length + evil)
        for address in store:
            post(address, evil)
            post(address, b"PUT /x HTTP/1.0\r\nContent-Length: 99999999999\r\n\r\n")
            post(address, b"A" * 100_000)
        pools = [str(path) for path in paths.runtime_dir().glob("workers-*.sock")]
        assert pools
        for path in pools:
            post(path, evil)
        await bench.step_at(2, time.time())
        await bench.rescale("h:0")
        await bench.step_at(1, time.time())
        bench.finish()
        assert (await bench.ended()).outcome == "completed"
        check_training(bench)
        # and what nobody should: Gloo's own sockets, of which SECURITY.md speaks. They may break the ring, no more.
        assert not evidence.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
@asynchronous
async def test_another_user_is_not_served() -> None:
    store = Store({"/secret": b"mine"})
    await store.start()
    ask = (
        "import encodings.idna, os, socket, sys\n"
        "if len(sys.argv) > 2: os.setuid(65534)\n"
        "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "try:\n    s.sendall(b'GET /secret HTTP/1.0\\r\\n\\r\\n'); sys.stdout.write(s.recv(999).decode())\n"
        "except ConnectionError: pass\n"
    )

    async def ask_as(*other: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", ask, str(store.port), *other],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert (await ask_as()).endswith("mine")
    assert await ask_as("nobody") == ""
    store.close()
