"""The forkserver of workers: one per environment, one thread, its own user, reports deaths, ends when idle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from jupyter_elastic.forkserver import forked_workers
from jupyter_elastic.forkserver.fork_client import ForkedProcess, ForkServerAddress, ForkServerClient
from jupyter_elastic.forkserver.forked_workers import WorkerLauncher
from jupyter_elastic.platform import processes
from jupyter_elastic.protocol.forkserver_messages import ANSWERS, MAX_REQUEST, REQUESTS, Cleared, Fork
from jupyter_elastic.protocol.framing import VERSION
from jupyter_elastic.types.errors import EngineError
from tests.live.engine.bench import asynchronous

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def address(mark: str, **environment: str) -> ForkServerAddress:
    """A forkserver of this test's own."""
    return forked_workers.address(sys.executable, {**ENVIRONMENT, "TORCH_MARK": mark, **environment}, ())


def command(path: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "jupyter_elastic.worker.forked_worker", "--socket", str(path), *options]


async def connected(path: Path) -> ForkServerClient:
    """A client of the forkserver that was started there."""
    async with asyncio.timeout(60):
        while True:
            raw = socket.socket(socket.AF_UNIX)
            try:
                raw.connect(str(path))
            except OSError:
                raw.close()
                await asyncio.sleep(0.01)
            else:
                return ForkServerClient(raw)


async def forked(client: ForkServerClient, kept_for: processes.ProcessId | None = None) -> ForkedProcess:
    """A worker that ends at once."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return await client.fork(theirs, kept_for)


def owner(path: Path) -> processes.ProcessId:
    pid, start_time, *_ = json.loads(path.with_suffix(".lock").read_text())
    return (pid, start_time)


def is_warm(path: Path) -> bool:
    log = path.with_suffix(".log")
    return log.exists() and "warm after" in log.read_text()


async def gone(process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(60):
        while process.poll() is None:  # noqa: ASYNC110 - it is our child: only `poll` says it
            await asyncio.sleep(0.01)


@asynchronous
async def test_one_that_a_signal_has_stopped_is_not_waited_for() -> None:
    launcher = WorkerLauncher(sys.executable, {"TORCH_MARK": "stopped"}, (), warm=True)
    path = launcher.forkserver.path
    client = await launcher.forkserver.connect(start=True)
    parent = owner(path)
    try:
        processes.send(parent, signal.SIGSTOP)
        while not processes.stopped(parent):  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)
        with pytest.raises(EngineError, match=rf"is stopped by a signal; kill -CONT {parent[0]}"):
            await forked(client)
        process, ours = await launcher.start()  # a cold one
        ours.close()
        await process.ended()
    finally:
        processes.send(parent, signal.SIGKILL)
        client.close()
        launcher.close()


@asynchronous
async def test_one_for_a_single_client_ends_with_it_however_that_ends() -> None:
    client = subprocess.Popen(["sleep", "600"])  # noqa: ASYNC220 - it comes back at once
    alone = forked_workers.address(sys.executable, {**ENVIRONMENT, "TORCH_MARK": "alone"}, (), only_for="4711.0")
    process = alone.start(processes.identify(client.pid))
    try:
        (await connected(alone.path)).close()
        assert process.poll() is None
        client.kill()
        client.wait()
        await gone(process)
    finally:
        process.kill()
        client.kill()
        process.wait()


@asynchronous
async def test_forks_and_tells_how_they_ended() -> None:
    launcher = WorkerLauncher(sys.executable, {"TORCH_MARK": "forks"}, (), warm=True)
    path = launcher.forkserver.path
    (await launcher.forkserver.connect(start=True)).close()
    first, first_pipe = await launcher.start()
    second, second_pipe = await launcher.start()
    server = owner(path)
    assert psutil.Process(first.pid).ppid() == server[0]
    assert psutil.Process(server[0]).num_threads() == 1
    while os.getsid(first.pid) != first.pid:  # noqa: ASYNC110 - its own session, a moment after the fork
        await asyncio.sleep(0.001)
    assert processes.living([first.known, second.known]) == [first.known, second.known]
    processes.send(first.known, signal.SIGKILL)
    assert await first.ended() == -signal.SIGKILL
    second_pipe.close()
    assert await second.ended() == 77  # its connection ended before it had an order
    again = await launcher.forkserver.connect(start=True)
    assert owner(path) == server  # the same one
    # The forkserver dies: its workers live on, and a new worker is started cold.
    processes.send(server, signal.SIGKILL)
    await processes.gone(server)
    third, third_pipe = await launcher.start()
    assert psutil.Process(third.pid).ppid() == os.getpid()
    third_pipe.close()
    first_pipe.close()
    assert await third.ended() == 77
    again.close()
    launcher.close()


@asynchronous
async def test_workers_wait_ahead_and_a_dead_one_is_not_handed_out() -> None:
    place = address("spares")
    client = await place.connect(start=True)
    server = owner(place.path)

    async def waiting(number: int, *but: int) -> list[processes.ProcessId]:
        until = time.monotonic() + 60
        while len(found := [c for c in psutil.Process(server[0]).children() if c.pid not in but]) != number:
            assert time.monotonic() < until, found
            await asyncio.sleep(0.01)
        return [(child.pid, child.create_time()) for child in found]

    spares = await waiting(2)
    for spare in spares:
        processes.send(spare, signal.SIGKILL)
        await processes.gone(spare)
    given = [await forked(client) for _ in range(3)]
    assert not {worker.pid for worker in given} & {pid for pid, _ in spares}
    assert [await worker.ended() for worker in given] == [77, 77, 77]
    left = await waiting(2)
    client.close()
    processes.send(server, signal.SIGKILL)
    async with asyncio.timeout(60):  # they see that nobody will ever want them
        for spare in left:
            await processes.gone(spare)


def test_ends_when_idle(tmp_path: Path) -> None:
    path = tmp_path / "workers-x.sock"
    done = subprocess.run(command(path, "--idle", "0.1"), timeout=60, check=True, capture_output=True, text=True)
    assert "1 thread(s)" in done.stderr
    assert not path.exists()


@asynchronous
async def test_ends_some_time_after_the_last_kernel_it_is_kept_for(tmp_path: Path) -> None:
    path = tmp_path / "workers-x.sock"
    kernels = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]  # noqa: ASYNC220
    known = [processes.identify(kernel.pid) for kernel in kernels]
    options = ("--keep", "0.1", "--kept-for", *map(str, known[0]))
    server = subprocess.Popen(command(path, *options), stderr=subprocess.PIPE)  # noqa: ASYNC220
    try:
        client = await connected(path)
        worker = await forked(client, known[1])
        assert await worker.ended() == 77
        client.close()
        kernels[0].kill()
        kernels[0].wait()
        assert server.poll() is None  # there is the other one
        kernels[1].kill()
        kernels[1].wait()
        await gone(server)
        assert server.stderr is not None
        assert b"whoever it was kept for is gone" in server.stderr.read()
        assert not path.exists()
    finally:
        for process in (server, *kernels):
            process.kill()
            process.wait()


@asynchronous
async def test_the_least_recently_used_make_room_but_not_while_a_job_uses_them(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "JUPYTER_ELASTIC_WARM": "2"}
    paths = [tmp_path / f"workers-{name}.sock" for name in "abcd"]
    started = []

    async def start(path: Path) -> ForkServerClient:
        with path.with_suffix(".log").open("wb") as log:
            started.append(subprocess.Popen(command(path), env=environment, stderr=log))  # noqa: ASYNC220
        async with asyncio.timeout(60):
            while not is_warm(path):  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)
        return await connected(path)

    try:
        busy = await start(paths[0])
        (await start(paths[1])).close()
        (await start(paths[2])).close()
        os.utime(paths[0].with_suffix(".lock"), (1, 1))  # were it the oldest
        (await start(paths[3])).close()
        await gone(started[1])
        worker = await forked(busy)  # told to go, and still there for the job that has it
        assert await worker.ended() == 77
        busy.close()
        await gone(started[0])
        assert started[2].poll() is None
        assert started[3].poll() is None
    finally:
        for child in started:
            child.kill()
            child.wait()


@asynchronous
async def test_only_one_lives_in_a_place(tmp_path: Path) -> None:
    path = tmp_path / "workers-x.sock"
    started = [subprocess.Popen(command(path), stderr=subprocess.DEVNULL) for _ in range(3)]  # noqa: ASYNC220
    try:
        async with asyncio.timeout(60):
            while sum(child.poll() is None for child in started) > 1:  # noqa: ASYNC110 - only `poll` says it
                await asyncio.sleep(0.01)
        assert sorted(child.returncode for child in started if child.returncode is not None) == [0, 0]
        assert await (await forked(await connected(path))).ended() == 77
    finally:
        for child in started:
            child.kill()
            child.wait()


def test_forkservers_differ_by_what_frameworks_read() -> None:
    def path(environment: dict[str, str], framework: str = "torch", python: str = sys.executable) -> Path:
        return forked_workers.address(python, environment, (framework,)).path

    one = path({"OMP_NUM_THREADS": "1"})
    assert one == path({"OMP_NUM_THREADS": "1", "EDITOR": "vi"})
    assert one != path({"OMP_NUM_THREADS": "2"})
    assert one != path({"OMP_NUM_THREADS": "1"}, "tensorflow")
    assert one != path({"OMP_NUM_THREADS": "1"}, python="/usr/bin/python3")


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(REQUESTS.encode(Fork())[:-1], id="cut"),
        pytest.param(REQUESTS.encode(Fork())[:2], id="cut in the header"),
        pytest.param(bytes([VERSION]) + (MAX_REQUEST + 1).to_bytes(3, "big"), id="too long"),
        pytest.param(bytes([VERSION + 1]) + REQUESTS.encode(Fork())[1:], id="another version"),
        pytest.param(ANSWERS.encode(Cleared()), id="another type"),
        pytest.param(b'{"k":"fork"}\n', id="the text of older ones"),
    ],
)
@asynchronous
async def test_who_sends_a_bad_request_is_dropped_and_the_others_are_not(bad: bytes) -> None:
    place = address("bad requests")
    client = await place.connect(start=True)
    reader, writer = await asyncio.open_unix_connection(str(place.path))
    writer.write(bad)
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    assert await (await forked(client)).ended() == 77
    client.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
@asynchronous
async def test_another_user_gets_no_worker(tmp_path: Path) -> None:
    path = Path("/tmp") / f"workers-test-{os.getpid()}.sock"
    server = subprocess.Popen(command(path), stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    client = await connected(path)
    try:
        path.chmod(0o777)  # were the folder open
        ask = (
            "import os, socket, sys\nos.setuid(65534)\ns = socket.socket(socket.AF_UNIX)\n"
            "a, b = socket.socketpair()\n"
            "try:\n    s.connect(sys.argv[1]); socket.send_fds(s, [bytes.fromhex(sys.argv[2])], [b.fileno()])\n"
            "    print(s.recv(99))\nexcept ConnectionError: print(b'')\n"
        )
        somebody_else = [sys.executable, "-c", ask, str(path), REQUESTS.encode(Fork()).hex()]
        done = await asyncio.to_thread(
            subprocess.run, somebody_else, timeout=60, check=True, capture_output=True, text=True
        )
        assert done.stdout == "b''\n"
    finally:
        client.close()
        server.kill()
        server.wait()
        for file in (path, path.with_suffix(".lock"), path.with_suffix(".log")):
            file.unlink(missing_ok=True)
