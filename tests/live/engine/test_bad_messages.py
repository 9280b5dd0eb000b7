"""Frames that a worker or its driver can't read, in streams between real processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_elastic.engines.process import Process
from jupyter_elastic.protocol.framing import HEADER, MAX_FRAME, VERSION
from jupyter_elastic.protocol.worker_messages import FROM_WORKER, TO_WORKER, CellDone, Update
from jupyter_elastic.worker.channel import ORPHANED
from tests.live.engine.bench import Bench, asynchronous

WRITES = """
import os, socket, time
for name in os.listdir("/proc/self/fd"):
    try:
        found = socket.socket(fileno=os.dup(int(name)))
    except OSError:
        continue
    if found.family == socket.AF_UNIX and found.type == socket.SOCK_STREAM:
        found.sendall(frame)
time.sleep(600)
"""
BAD = [
    pytest.param(bytes([VERSION + 1]) + FROM_WORKER.encode(CellDone())[1:], "speaks version", id="version"),
    pytest.param(bytes([VERSION]) + MAX_FRAME.to_bytes(HEADER - 1, "big"), "over the limit", id="length"),
    pytest.param(TO_WORKER.encode(Update()), "can't be read", id="type"),
    pytest.param(b'{"k": "done"}\n', "speaks version", id="JSON"),
]


@pytest.mark.parametrize(("frame", "why"), BAD)
@asynchronous
async def test_a_worker_that_sends_what_can_not_be_read_is_ended_and_the_job_says_why(
    folder: Path, frame: bytes, why: str
) -> None:
    async with Bench(Process, folder, WRITES, names={"frame": frame}) as bench:
        await bench.launch("h:0", "h:1")
        ended = await bench.ended()
        assert ended.outcome == "failed"
        assert why in ended.reason
        assert json.loads((folder / "error.json").read_text())["type"] == "ProtocolError"


@pytest.mark.parametrize(
    ("frame", "why"), [*BAD[:2], pytest.param(FROM_WORKER.encode(CellDone()), "can't be", id="type")]
)
def test_a_worker_whose_first_message_can_not_be_read_says_why(frame: bytes, why: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame)
        command = [sys.executable, "-m", "jupyter_elastic.worker.worker", "--fd", str(theirs.fileno())]
        worker = subprocess.run(
            command, pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=60, check=False
        )
    assert worker.returncode == 1
    assert why in worker.stderr


def test_a_worker_whose_order_is_cut_takes_its_driver_for_gone() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(bytes([VERSION, 0, 0, 100]) + b"\x80")
        command = [sys.executable, "-m", "jupyter_elastic.worker.worker", "--fd", str(theirs.fileno())]
        worker = subprocess.run(command, pass_fds=[theirs.fileno()], capture_output=True, timeout=60, check=False)
    assert worker.returncode == ORPHANED
