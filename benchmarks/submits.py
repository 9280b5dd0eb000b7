"""Durable submits a second, against the least that could do it: a bare ROUTER loop with one fdatasync a batch.

Both take the same job of some 500 bytes from one client that keeps 256 asks in flight over a UNIX socket, and
acknowledge it when it is on disk. The bare loop parses JSON, keeps a small object and appends a line; ours types and
checks the request, judges it, folds it into the books, journals it in SQLite, tells the policy, and answers. Both run
on the same disk, in turn, each in a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zmq

from benchmarks.harness import row
from jupyter_elastic.platform import endpoints, paths
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobSpec

WINDOW = 256
JOBS = 10_000
SINGLE = 200

BARE = """
import json, os, sys, zmq
socket = zmq.Context().socket(zmq.ROUTER)
socket.rcvhwm = socket.sndhwm = 0
socket.bind(sys.argv[1])
journal = os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC)
queue, number = {}, 0
class Job:
    __slots__ = ("id", "key", "name", "min", "max", "state")
print("ready", flush=True)
while True:
    socket.poll()
    batch, lines = [], []
    while len(batch) < 512:
        try:
            peer, frame = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            break
        asked = json.loads(frame)
        number += 1
        job = Job()
        job.id, job.key, job.state = number, asked["key"], "queued"
        job.name, job.min, job.max = asked["spec"]["name"], asked["spec"]["min_slots"], asked["spec"]["max_slots"]
        queue[number] = job
        lines.append(frame)
        batch.append((peer, asked["id"], number))
    if batch:
        os.write(journal, b"\\n".join(lines) + b"\\n")
        os.fdatasync(journal)
        for peer, request, made in batch:
            socket.send_multipart([peer, b'{"id":%d,"job":%d}' % (request, made)])
"""


def spec() -> JobSpec:
    """A job as a notebook sends it."""
    return JobSpec(
        name="mnist", folder=f"/home/alice/.local/share/jupyter-elastic/jobs/{uuid.uuid4().hex}",
        python="/usr/bin/python3", min_slots=1, max_slots=4, notebook="/home/alice/notebooks/train.ipynb",
        cell="c0ffee" * 6, estimate_s=600.0,
    )  # fmt: skip


def our_frame(number: int, key: str) -> bytes:
    """A submit in our protocol."""
    return wire.encode(wire.Request(id=number, ask=wire.SubmitJob(spec=spec(), key=key)))


def bare_frame(number: int, key: str) -> bytes:
    """The same in the bare loop's."""
    job = spec()
    return json.dumps({"id": number, "key": key, "spec": {f: getattr(job, f) for f in job.__struct_fields__}}).encode()


@contextlib.contextmanager
def bare(folder: Path) -> Iterator[str]:
    """The bare loop, running; its endpoint."""
    endpoint = f"ipc:///tmp/je-bare-{os.getpid()}.sock"
    process = subprocess.Popen(
        [sys.executable, "-c", BARE, endpoint, str(folder / "bare.journal")],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield endpoint
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def ours(folder: Path) -> Iterator[str]:
    """Our daemon with a fresh pool, running; its endpoint."""
    pool = folder / "pool"
    shutil.rmtree(pool, ignore_errors=True)
    os.environ[paths.DIR_VARIABLE] = str(pool)
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyter_elastic.scheduler", "--slots", "4"],
        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while (found := endpoints.living_daemon()) is None or found.pid != process.pid:
            time.sleep(0.01)
        yield found.endpoint
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(pool, ignore_errors=True)


def drive(endpoint: str, frame: Callable[[int, str], bytes]) -> tuple[float, float]:
    """(acknowledged submits a second with 256 in flight, median seconds of one alone)."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.rcvhwm = socket.sndhwm = 0
    socket.linger, socket.rcvtimeo = 0, 60_000
    socket.connect(endpoint)
    try:
        alone = []
        for number in range(SINGLE):
            asked = frame(number, f"alone {number}")
            started = time.perf_counter()
            socket.send(asked)
            socket.recv()
            alone.append(time.perf_counter() - started)
        frames = [frame(number, f"many {number}") for number in range(JOBS)]
        sent = got = 0
        started = time.perf_counter()
        while got < JOBS:
            while sent < JOBS and sent - got < WINDOW:
                socket.send(frames[sent])
                sent += 1
            last = socket.recv()
            got += 1
        took = time.perf_counter() - started
        assert b"Refused" not in last, last
    finally:
        context.destroy(linger=0)
    return JOBS / took, statistics.median(alone)


def measure(rounds: int = 5) -> list[dict[str, Any]]:
    """Both in turn, `rounds` times."""
    folder = Path(tempfile.mkdtemp(prefix="je-submits-", dir=Path(__file__).parent))
    before = os.environ.get(paths.DIR_VARIABLE)
    many: tuple[list[float], list[float]] = ([], [])
    single: tuple[list[float], list[float]] = ([], [])
    try:
        for _ in range(rounds):
            for at, (server, frame) in enumerate(((ours, our_frame), (bare, bare_frame))):
                with server(folder) as endpoint:
                    rate, alone = drive(endpoint, frame)
                many[at].append(rate)
                single[at].append(alone * 1000)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if before is None:
            os.environ.pop(paths.DIR_VARIABLE, None)
        else:
            os.environ[paths.DIR_VARIABLE] = before
    return [
        row("durable submits, 256 in flight", "jobs/s", many[0], many[1], "bare ROUTER + fdatasync", ">= 0.25"),
        row("durable submit, one alone", "ms", single[0], single[1], "bare ROUTER + fdatasync"),
    ]


if __name__ == "__main__":
    for entry in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        print(json.dumps(entry))
