"""Connections without end: each costs its user, and the daemon lives on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import zmq

from jupyter_elastic.platform import endpoints, paths, private_files
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import user_name
from jupyter_elastic.scheduler.net.connections import Connection, Connections
from jupyter_elastic.scheduler.net.rate_limits import SHARED

FEW = ("prlimit", "--nofile=3000:3000")
"""Descriptors as a plain machine gives them."""

NOBODY = 65534
BY_USER = int(SHARED.connections)

ONE_MORE = """
import os, sys, zmq
from jupyter_elastic.protocol import wire
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
context, kept = zmq.Context(), []
for number in range(int(sys.argv[3]) + 1):
    socket = context.socket(zmq.DEALER)
    socket.linger, socket.rcvtimeo = 0, 30_000
    kept.append(socket)
    socket.connect(sys.argv[1])
    socket.send(wire.encode(wire.Request(id=1, ask=wire.Hello(version=wire.VERSION))))
    print(wire.decode_message(socket.recv()).answer, flush=True)
sys.stdin.read()
"""

FLOOD = """
import os, resource, socket, sys
path, count, user = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100,) * 2)
if user:
    os.setgroups([]); os.setgid(user); os.setuid(user)
opened = []
for _ in range(count):
    if path.isdigit():
        one = socket.create_connection(("127.0.0.1", int(path)))
    else:
        one = socket.socket(socket.AF_UNIX)
        one.connect(path)
    opened.append(one)
print("open", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def silent(path: Path | str, count: int, user: int = 0):
    """A process that has so many connections and says nothing."""
    process = subprocess.Popen(
        [sys.executable, "-c", FLOOD, str(path), str(count), str(user)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.communicate()


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def test_more_connections_than_descriptors_do_not_end_the_daemon(pool) -> None:
    client = pool.start(before=FEW).client()
    assert isinstance(client.ask(wire.Ping()), wire.Done)
    with silent(paths.socket_path(), 5000) as flood:
        assert flood.stdout.readline() == b"open\n"
        assert isinstance(client.ask(wire.Ping()), wire.Done), pool.log.read_text()
        assert descriptors(pool.process.pid) < 3000
    assert isinstance(pool.client().ask(wire.Ping()), wire.Done)
    with silent(paths.socket_path(), 5000) as flood:
        assert flood.stdout.readline() == b"open\n"
        assert pool.stop() == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_the_connections_of_one_user_are_counted_and_nobody_else_notices(pool) -> None:
    with tempfile.TemporaryDirectory(prefix="je-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "s"
        pool.start("--socket", str(path), before=FEW)
        client = pool.client(endpoint=f"ipc://{path}")
        assert isinstance(client.ask(wire.Ping()), wire.Done)
        speaking = subprocess.Popen(
            [sys.executable, "-c", ONE_MORE, f"ipc://{path}", str(NOBODY), str(BY_USER)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        answers = [speaking.stdout.readline() for _ in range(BY_USER + 1)]
        assert all("Welcome" in answer for answer in answers[:-1])
        assert f"{user_name(NOBODY)} has {BY_USER} connections" in answers[-1]
        assert "an administrator (root) can raise that" in answers[-1]
        with silent(path, 5000, NOBODY) as flood:
            assert flood.stdout.readline() == b"open\n"
            assert isinstance(pool.client(endpoint=f"ipc://{path}").ask(wire.Ping()), wire.Done)
            assert descriptors(pool.process.pid) < 2 * BY_USER + 100
        speaking.communicate()
        assert isinstance(client.ask(wire.Ping()), wire.Done)


def test_a_descriptor_that_is_used_again_is_another_connection(tmp_path) -> None:
    def connection_of(frame: zmq.Frame) -> tuple[int, Connection | None]:
        descriptor = int(frame.get(zmq.SRCFD))
        return descriptor, connections.find(descriptor, "somebody")

    left: list[str] = []
    taken: list[int] = []
    context, other = zmq.Context(), zmq.Context()
    connections = Connections(
        context, time.monotonic, by_user=10, is_admin=lambda _: False, name_of=str, is_barred=lambda _: False,
        left=left.append,
    )  # fmt: skip
    server = context.socket(zmq.ROUTER)
    monitor = connections.watch(server)
    server.bind(f"ipc://{tmp_path}/s")
    clients = [other.socket(zmq.DEALER) for _ in range(2)]
    try:
        clients[0].connect(f"ipc://{tmp_path}/s")
        clients[0].send(b"first")
        descriptor, first = connection_of(server.recv_multipart(copy=False)[1])
        first.peer = "first"
        clients[0].close(linger=0)
        assert monitor.poll(10_000)  # its end is known to nobody yet
        while Path(f"/proc/self/fd/{descriptor}").exists():
            time.sleep(0.001)
        # The kernel gives the lowest free number: one for the other client, then the one that was used before.
        taken = [os.open(os.devnull, os.O_RDONLY)]
        while taken[-1] < descriptor:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        os.close(taken.pop())
        os.close(taken.pop())
        clients[1].connect(f"ipc://{tmp_path}/s")
        clients[1].send(b"second")
        again, second = connection_of(server.recv_multipart(copy=False)[1])
        assert again == descriptor
        assert second is not first
        assert left == ["first"]
    finally:
        for number in taken:
            os.close(number)
        other.destroy(linger=0)
        connections.close()
        server.close(linger=0)
        context.term()


def memory(pid: int) -> int:
    """KiB of the process that are its own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def test_what_a_crowd_of_connections_took_is_given_back(pool) -> None:
    client = pool.start().client()
    assert isinstance(client.ask(wire.Ping()), wire.Done)
    before = memory(pool.process.pid)
    hello = wire.encode(wire.Request(id=1, ask=wire.Hello(version=wire.VERSION)))
    for _ in range(3):
        with zmq.Context() as context:
            crowd = [context.socket(zmq.DEALER) for _ in range(800)]
            for one in crowd:
                one.linger, one.rcvtimeo = 0, 60_000
                one.connect(f"ipc://{paths.socket_path()}")
                one.send(hello)
            for one in crowd:
                assert isinstance(wire.decode_message(one.recv()).answer, wire.Welcome)
            most = memory(pool.process.pid)
            for one in crowd:
                one.close()
    assert most > before + 10_000
    limit = time.monotonic() + 120
    while memory(pool.process.pid) > before + 4_000:
        assert time.monotonic() < limit, f"{memory(pool.process.pid)} kB, {before} before"
        time.sleep(0.1)


@pytest.mark.skipif(not os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"), reason="ten seconds until they are ended")
def test_strangers_that_never_finish_their_handshake_over_tcp_shut_nobody_out(pool, tmp_path) -> None:
    table = tmp_path / "keys.txt"
    table.write_text("")
    client = pool.start("--tcp", "tcp://127.0.0.1:0", "--keys", str(table), before=FEW).client()
    assert isinstance(client.ask(wire.Ping()), wire.Done)
    idle = descriptors(pool.process.pid)
    remote = private_files.read_json(paths.state_dir() / "remote.json", endpoints.Endpoint)
    with silent(remote.endpoint.rpartition(":")[2], 5000) as flood:
        assert flood.stdout.readline() == b"open\n"
        assert isinstance(pool.client().ask(wire.Ping()), wire.Done)
        assert descriptors(pool.process.pid) < 1000
        limit = time.monotonic() + 120
        while descriptors(pool.process.pid) > idle + 10:
            assert time.monotonic() < limit
            time.sleep(0.1)
        assert isinstance(client.ask(wire.Ping()), wire.Done)
