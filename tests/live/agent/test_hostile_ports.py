"""Hostile pickles into every socket on which a job, its agent, its warm pool or the daemon listens: none runs.

For a ring of PyTorch and one of TensorFlow, in a whole pool. Gloo's own ports, which are C++ and know no pickles, are
open only while a ring forms (SECURITY.md); that they are shut again is seen here.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_elastic.protocol.framing import HEADER, VERSION
from tests.live.engine.bench import TENSORFLOW, TORCH, needs
from tests.support.marks import everything
from tests.support.pool import Pool

LISTENING = 0x10000
"""`__SO_ACCEPTCON` in the flags of `/proc/net/unix`."""
ZMTP = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" * 32


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.path}",))


def listeners(pid: int) -> tuple[set[tuple[str, int]], set[str]]:
    """TCP addresses and UNIX paths on which a process listens."""
    tcp = {
        (found.laddr.ip, found.laddr.port)
        for found in psutil.Process(pid).net_connections("inet")
        if found.status == psutil.CONN_LISTEN
    }
    own = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(entry.readlink()))
    paths = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if len(words) == 8 and int(words[3], 16) & LISTENING and f"socket:[{words[6]}]" in own:
            paths.add(words[7])
    return tcp, paths


def frames(evil: bytes) -> list[bytes]:
    """The pickle in the clothes of everybody who speaks here."""
    http = f"HTTP/1.0\r\nContent-Length: {len(evil)}\r\n\r\n".encode()
    keys = (b"/worker_addresses/w0", b"/rank_and_size/w0:0", b"/global/0", b"/")
    return [
        evil,
        bytes([VERSION]) + len(evil).to_bytes(HEADER - 1, "big") + evil,  # driver and agent
        json.dumps({"k": "start", "payload": evil.hex()}).encode() + b"\n",
        ZMTP + b"\x00" + bytes([len(evil)]) + evil,  # the daemon
        *(verb + b" " + key + b" " + http + evil for verb in (b"PUT", b"POST", b"GET") for key in keys),
    ]


def post(address: tuple[str, int] | str, data: bytes) -> None:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family) as client:
        client.settimeout(0.1)
        client.connect(address if isinstance(address, tuple) or address[0] != "@" else "\0" + address[1:])
        client.sendall(data)
        client.recv(4096)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(TORCH, id="torch", marks=needs("torch")),
        pytest.param(TENSORFLOW, id="tensorflow", marks=[needs("tensorflow"), everything]),
    ],
)
def test_no_socket_of_a_pool_runs_a_pickle(tmp_path: Path, source: str) -> None:
    evidence = tmp_path / "executed"
    evil = pickle.dumps(Evil(evidence))
    pickle.loads(evil)
    assert evidence.exists(), "the weapon works"
    evidence.unlink()

    def steps() -> list[dict[str, Any]]:
        path = tmp_path / "steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def step_of_two(after: float) -> bool:
        return any(step["size"] == 2 and step["at"] > after for step in steps())

    with Pool(tmp_path / "pool", slots=2) as pool:
        job = pool.submit(source, slots=2, engine="horovod", names={"FOLDER": str(tmp_path)}, out=("steps", "weights"))
        pool.until(lambda: step_of_two(0.0), "the ring trains")
        tcp: set[tuple[str, int]] = set()
        unix: set[str] = set()
        for pid, _ in pool.members():
            with contextlib.suppress(psutil.Error, OSError):
                found = listeners(pid)
                tcp |= found[0]
                unix |= found[1]
        workers = {pid for pid, _ in pool.pids(job)[1:]}
        assert len(workers) == 2
        assert not any(listeners(pid)[0] for pid in workers), "Gloo's own ports are shut once the ring stands"
        assert {ip for ip, _ in tcp} == {"127.0.0.1"}, "nothing listens beyond loopback"
        names = {Path(path).name for path in unix}
        assert {"daemon.sock", "driver.sock"} <= names, names
        assert any(name.startswith("workers-") for name in names), names
        with ThreadPoolExecutor(8) as posters:
            for address in (*tcp, *unix):
                for data in frames(evil):
                    posters.submit(post, address, data)
        posted = time.time()
        pool.until(lambda: step_of_two(posted), "the ring trains on")
        assert pool.client.jobs(job=job)[0].phase == "running"
        (tmp_path / "stop").touch()
        assert pool.ended(job).outcome == "completed"
        assert not evidence.exists()
        numbers = {step["step"] for step in steps()}
        assert numbers == set(range(1, max(numbers) + 1))
