"""The warm pool: one per environment, one thread, its own user, reports deaths, ends when idle."""

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

from jupyter_elastic.errors import EngineError
from jupyter_elastic.forkserver import workers as spawn
from jupyter_elastic.forkserver.workers import PoolClient, Spawner, connect, socket_of
from jupyter_elastic.platform import paths, processes
from tests.live.engine.bench import asynchronous

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def owner(path: Path) -> processes.Known:
    pid, start_time, *_ = json.loads(path.with_suffix(".lock").read_text())
    return (pid, start_time)


def measured(path: Path) -> bool:
    log = path.with_suffix(".log")
    return log.exists() and "workers that wait" in log.read_text()


async def gone(process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(60):
        while process.poll() is None:  # noqa: ASYNC110 - it is our child: only `poll` says it
            await asyncio.sleep(0.01)


@asynchronous
async def test_forks_and_tells_how_they_ended() -> None:
    path = paths.runtime_dir() / "pool-test-a.sock"
    client = await connect(path, sys.executable, ENVIRONMENT, (), start=True)
    spawner = Spawner(sys.executable, {}, (), warm=True)
    spawner._client = client
    first, first_pipe = await spawner.start()
    second, second_pipe = await spawner.start()
    pool = owner(path)
    assert psutil.Process(first.pid).ppid() == pool[0]
    assert psutil.Process(pool[0]).num_threads() == 1
    while os.getsid(first.pid) != first.pid:  # noqa: ASYNC110 - its own session, a moment after the fork
        await asyncio.sleep(0.001)
    assert processes.living([first.known, second.known]) == [first.known, second.known]
    processes.send(first.known, signal.SIGKILL)
    assert await first.ended() == -signal.SIGKILL
    second_pipe.close()
    assert await second.ended() == 77  # its pipe ended before it was told anything
    again = await connect(path, sys.executable, ENVIRONMENT, (), start=True)
    assert owner(path) == pool  # the same one
    # The pool dies: its workers live on, and a new worker is started cold.
    processes.send(pool, signal.SIGKILL)
    await processes.gone(pool)
    third, third_pipe = await spawner.start()
    third_pipe.close()
    first_pipe.close()
    assert await third.ended() == 77
    again.close()
    spawner.close()


@asynchronous
async def test_workers_wait_ahead_and_a_dead_one_is_not_handed_out() -> None:
    path = paths.runtime_dir() / "pool-test-b.sock"
    client = await connect(path, sys.executable, ENVIRONMENT, (), start=True)
    pool = owner(path)

    async def waiting(number: int, *but: int) -> list[processes.Known]:
        until = time.monotonic() + 60
        while len(found := [c for c in psutil.Process(pool[0]).children() if c.pid not in but]) != number:
            assert time.monotonic() < until, found
            await asyncio.sleep(0.01)
        return [(child.pid, child.create_time()) for child in found]

    spares = await waiting(2)
    for spare in spares:
        processes.send(spare, signal.SIGKILL)
        await processes.gone(spare)
    spawner = Spawner(sys.executable, {}, (), warm=True)
    spawner._client = client
    workers = [await spawner.start() for _ in range(3)]
    known = {worker.pid for worker, _ in workers}
    assert not known & {pid for pid, _ in spares}
    assert processes.living([worker.known for worker, _ in workers]) == [worker.known for worker, _ in workers]
    await waiting(3, *known)  # as many as were wanted at once
    for worker, pipe in workers:
        pipe.close()
        assert await worker.ended() == 77
    left = await waiting(3)
    processes.send(pool, signal.SIGKILL)
    async with asyncio.timeout(60):  # they see that nobody will ever want them
        for spare in left:
            await processes.gone(spare)
    spawner.close()


def test_ends_when_idle(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_elastic.forkserver.server", "--socket", str(path), "--idle", "0.1"],
        timeout=60, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "1 thread(s)" in done.stderr
    assert not path.exists()


@asynchronous
async def test_ends_some_time_after_the_last_kernel_it_is_kept_for(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    kernels = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]  # noqa: ASYNC220
    known = [processes.known(kernel.pid) for kernel in kernels]
    command = [sys.executable, "-m", "jupyter_elastic.forkserver.server", "--socket", str(path), "--keep", "0.1"]
    pool = subprocess.Popen([*command, "--kept-for", *map(str, known[0])], stderr=subprocess.PIPE)  # noqa: ASYNC220
    try:
        client: PoolClient | None = None
        while client is None:
            assert pool.poll() is None
            with contextlib.suppress(EngineError):
                client = await connect(path, sys.executable, ENVIRONMENT, (), start=False)
            await asyncio.sleep(0.01)
        ours, theirs = socket.socketpair()
        worker = await client.fork(theirs, known[1])
        theirs.close()
        ours.close()
        assert await worker.ended() == 77
        client.close()
        kernels[0].kill()
        kernels[0].wait()
        assert pool.poll() is None  # there is the other one
        kernels[1].kill()
        kernels[1].wait()
        await gone(pool)
        assert pool.stderr is not None
        assert b"whoever it was kept for is gone" in pool.stderr.read()
        assert not path.exists()
    finally:
        for process in (pool, *kernels):
            process.kill()
            process.wait()


@asynchronous
async def test_the_least_recently_used_make_room_but_not_while_a_job_uses_them(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "JUPYTER_ELASTIC_WARM": "2"}
    paths = [tmp_path / f"pool-{name}.sock" for name in "abc"]
    started = []

    async def start(path: Path) -> PoolClient:
        started.append(spawn.start_pool(path, sys.executable, environment, ()))
        async with asyncio.timeout(60):
            while not measured(path):  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)
        return await connect(path, sys.executable, environment, (), start=False)

    try:
        busy = await start(paths[0])
        (await start(paths[1])).close()
        (await start(paths[2])).close()
        os.utime(paths[0].with_suffix(".lock"), (1, 1))  # were it the oldest
        again = tmp_path / "pool-d.sock"
        (await start(again)).close()
        await gone(started[1])
        ours, theirs = socket.socketpair()
        worker = await busy.fork(theirs)  # told to go, and still there for the job that has it
        theirs.close()
        ours.close()
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
async def test_only_one_pool(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    started = [spawn.start_pool(path, sys.executable, ENVIRONMENT, ()) for _ in range(3)]
    try:
        client = await connect(path, sys.executable, ENVIRONMENT, (), start=False) if path.exists() else None
        until = time.monotonic() + 60
        while sum(child.poll() is None for child in started) > 1:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        assert sorted(child.returncode for child in started if child.returncode is not None) == [0, 0]
        if client is not None:
            client.close()
    finally:
        for child in started:
            child.kill()
            child.wait()


def test_pools_differ_by_what_frameworks_read() -> None:
    one = socket_of(sys.executable, {"OMP_NUM_THREADS": "1"}, ("torch",))
    assert one == socket_of(sys.executable, {"OMP_NUM_THREADS": "1", "EDITOR": "vi"}, ("torch",))
    assert one != socket_of(sys.executable, {"OMP_NUM_THREADS": "2"}, ("torch",))
    assert one != socket_of(sys.executable, {"OMP_NUM_THREADS": "1"}, ("tensorflow",))
    assert one != socket_of("/usr/bin/python3", {"OMP_NUM_THREADS": "1"}, ("torch",))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
@asynchronous
async def test_another_user_gets_no_worker(tmp_path: Path) -> None:
    path = Path("/tmp") / f"pool-test-{os.getpid()}.sock"
    client = await connect(path, sys.executable, ENVIRONMENT, (), start=True)
    try:
        path.chmod(0o777)  # were the folder open
        ask = (
            "import os, socket, sys\nos.setuid(65534)\ns = socket.socket(socket.AF_UNIX)\n"
            "a, b = socket.socketpair()\n"
            'try:\n    s.connect(sys.argv[1]); socket.send_fds(s, [b\'{"k":"fork"}\'], [b.fileno()])\n'
            "    print(s.recv(99))\nexcept ConnectionError: print(b'')\n"
        )
        command = [sys.executable, "-c", ask, str(path)]
        done = await asyncio.to_thread(subprocess.run, command, timeout=60, check=True, capture_output=True, text=True)
        assert done.stdout == "b''\n"
    finally:
        client.close()
        processes.send(owner(path), signal.SIGKILL)
        for file in (path, path.with_suffix(".lock"), path.with_suffix(".log")):
            file.unlink(missing_ok=True)
