"""Hostile and broken peers on the real sockets. Each costs itself; nobody else notices."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import zmq

from jupyter_elastic.platform import endpoints, paths, private_files
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import user_name
from jupyter_elastic.scheduler.event_streams import STREAMS
from jupyter_elastic.types import AgentOrigin
from jupyter_elastic.types.errors import DaemonUnreachable

EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))


@pytest.fixture
def dealer():
    """A bare socket to the daemon."""
    context = zmq.Context()
    made = context.socket(zmq.DEALER)
    made.linger = 0
    made.rcvtimeo = 60_000
    yield made
    context.destroy(linger=0)


def ask(dealer, ask_, number=1):
    """The answer to one ask, over a bare socket."""
    dealer.send(wire.encode(wire.Request(id=number, ask=ask_)))
    while True:
        message = wire.decode_message(dealer.recv())
        if isinstance(message, wire.AnswerMessage) and message.id == number:
            return message.answer


def endpoint() -> str:
    return endpoints.find().endpoint


def test_garbage_is_answered_with_a_refusal_and_nothing_else_happens(pool, dealer, spec) -> None:
    client = pool.start().client()
    good = wire.encode(wire.Request(id=5, ask=wire.SubmitJob(spec=spec, key="k")))
    chance = random.Random(5)
    dealer.connect(endpoint())
    frames = [b"", b"\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x93" * 10_000, b"\xc1", good[:-1], good + b"x"]
    frames += [chance.randbytes(chance.randrange(200)) for _ in range(20_000 if EVERYTHING else 300)]
    for _ in range(20_000 if EVERYTHING else 600):
        frame = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        frames.append(bytes(frame))
    frames += [msgspec.msgpack.encode({"id": 1, "ask": {"type": name}}) for name in ("SubmitJob", "Eval", "Hello")]
    frames.append(msgspec.msgpack.encode({"id": 1, "ask": {"type": "Ping", "more": 1}}))
    before = len(client.jobs(all=True))
    for at in range(0, len(frames), 100):
        for frame in frames[at : at + 100]:
            dealer.send(frame)
        answers = [wire.decode_message(dealer.recv()).answer for _ in frames[at : at + 100]]
        assert all(isinstance(answer, wire.Refused | wire.Submitted) for answer in answers)
    assert isinstance(ask(dealer, wire.Ping()), wire.Done), "the same connection is still good for a good frame"
    names = {info.spec.name for info in client.jobs(all=True)[before:]}
    assert all(len(name) < 200 for name in names)
    assert pool.process.poll() is None


def test_hostile_fields_are_refused(pool, spec, dealer) -> None:
    pool.start()
    dealer.connect(endpoint())
    hostile = [
        wire.SubmitJob(spec=msgspec.structs.replace(spec, folder="../../etc"), key="a"),
        wire.SubmitJob(spec=msgspec.structs.replace(spec, folder="/tmp/\0"), key="b"),
        wire.SubmitJob(spec=msgspec.structs.replace(spec, name="a\x1b]0;title\x07"), key="f"),
        wire.SubmitJob(spec=msgspec.structs.replace(spec, notebook="a\x9b2J"), key="g"),
        wire.SubmitJob(spec=msgspec.structs.replace(spec, cell="\u202eturned"), key="h"),
        wire.Hello(version=wire.VERSION, place=AgentOrigin(place="here", description="a\nb")),
        wire.SwitchPolicy(name="fifo\x1b[2J"),
        wire.SwitchPolicy(name="fifo", options={"a": ["\x1b[2J"]}),
        wire.SubmitJob(spec=msgspec.structs.replace(spec, sizes=tuple(range(100_000))), key="c"),
        wire.SubmitJob(spec=msgspec.structs.replace(spec, max_time_s=float("nan")), key="d"),
        wire.SubmitJob(spec=msgspec.structs.replace(spec, deadline_at=float("inf")), key="e"),
        wire.SubmitJob(spec=spec, key="k" * 100_000),
        wire.SubmitJob(spec=spec, key=""),
        wire.CancelJob(job=-1),
        wire.CancelJob(job=2**63),
        wire.ResizeJob(job=1, min_slots=-5, max_slots=2**40),
        wire.SwitchPolicy(name="../fifo"),
        wire.SwitchPolicy(name="fifo", options={"backfill": "x" * 1_000_000}),
        wire.SwitchPolicy(name="fifo", source="import os; os.abort()" * 10_000),
        wire.Hello(version=wire.VERSION, role="x" * 1_000_000),
        wire.ExplainJob(job=10**18),
    ]
    for number, one in enumerate(hostile, 10):
        answer = ask(dealer, one, number)
        assert isinstance(answer, wire.Refused), one
        assert answer.code in {"bad_request", "not_found"}, answer
        assert len(answer.message) < 2_000
    assert ask(dealer, wire.ListJobs(all=True, limit=-(10**12)), 99).jobs == ()
    assert isinstance(ask(dealer, wire.Follow(since=-(10**15), job=-3), 100), wire.Following)
    assert isinstance(ask(dealer, wire.Follow(since=10**15), 101), wire.Following)


def test_a_connection_follows_so_many_streams_and_no_more(pool, dealer) -> None:
    pool.start()
    dealer.connect(endpoint())
    answers = [ask(dealer, wire.Follow(stream=number, since=10**15), number + 1) for number in range(STREAMS + 1)]
    assert all(isinstance(answer, wire.Following) for answer in answers[:-1])
    assert isinstance(answers[-1], wire.Refused)
    assert "at most" in answers[-1].message
    assert isinstance(ask(dealer, wire.Unfollow(stream=0), 2000), wire.Done)
    assert isinstance(ask(dealer, wire.Follow(stream=STREAMS, since=10**15), 2001), wire.Following)


def test_an_oversized_frame_costs_its_sender_the_connection(pool, dealer) -> None:
    client = pool.start().client()
    memory = _rss(pool.process.pid)
    dealer.connect(endpoint())
    assert isinstance(ask(dealer, wire.Ping()), wire.Done)
    for _ in range(5):
        dealer.send(b"x" * (wire.MAX_FRAME + 1))
    dealer.rcvtimeo = 300
    with pytest.raises(zmq.Again):
        dealer.recv()
    assert isinstance(client.ask(wire.Ping()), wire.Done)
    dealer.rcvtimeo = 60_000
    assert isinstance(ask(dealer, wire.Ping(), 2), wire.Done), "it may come back"
    assert _rss(pool.process.pid) < memory + 60_000


def test_parts_and_names_of_ones_own_are_ignored(pool, dealer) -> None:
    client = pool.start().client()
    ping = wire.encode(wire.Request(id=1, ask=wire.Ping()))
    dealer.connect(endpoint())
    dealer.send_multipart([ping, ping, ping])
    dealer.send_multipart([b"", ping])
    assert isinstance(ask(dealer, wire.Ping(), 7), wire.Done)
    context = zmq.Context()
    named = context.socket(zmq.DEALER)
    named.linger, named.routing_id, named.rcvtimeo = 0, b"somebody else's name", 300
    named.connect(endpoint())
    named.send(ping)
    with pytest.raises(zmq.Again):
        named.recv()
    context.destroy(linger=0)
    assert isinstance(client.ask(wire.Ping()), wire.Done)


def test_no_zeromq_at_all(pool) -> None:
    client = pool.start().client()
    chance = random.Random(3)
    greeting = b"\xff" + b"\0" * 8 + b"\x7f\x03\x01NULL" + b"\0" * 48
    opened = []
    for number in range(60):
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(str(paths.socket_path()))
        with contextlib.suppress(OSError):
            raw.sendall(greeting[: chance.randrange(64)] if number % 2 else chance.randbytes(500))
        if number % 3:
            raw.close()
        else:
            opened.append(raw)  # half-open: says nothing more and doesn't go
    assert isinstance(client.ask(wire.Ping()), wire.Done)
    for raw in opened:
        raw.close()


def test_a_peer_cannot_write_its_own_name_into_its_greeting(pool) -> None:
    """Metadata of ZMTP's READY comes from the peer; who it is must come from the kernel."""
    pool.start()
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(60)
    raw.connect(str(paths.socket_path()))
    raw.sendall(b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + b"\0" * 31)
    got = b""
    while len(got) < 64:
        got += raw.recv(64 - len(got))
    ready = b"\x05READY"
    forged = {
        b"Socket-Type": b"DEALER",
        b"Identity": b"",
        b"User-Id": b"mallory",
        b"Peer-Address": b"localhost:4242:0:1",
    }
    for name, value in forged.items():
        ready += bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
    raw.sendall(b"\x04" + bytes([len(ready)]) + ready)
    body = wire.encode(wire.Request(id=1, ask=wire.Hello(version=wire.VERSION)))
    raw.sendall(b"\x00" + bytes([len(body)]) + body)
    got = b""
    while b"Welcome" not in got:
        piece = raw.recv(4096)
        assert piece, got
        got += piece
    raw.close()
    welcome = got[got.index(b"Welcome") :]
    assert user_name(os.getuid()).encode() in welcome
    assert b"mallory" not in welcome
    assert b"4242" not in welcome


def test_a_reader_that_does_not_read_holds_nobody_up(pool, dealer, spec) -> None:
    client = pool.start().client()
    dealer.rcvhwm = 1
    dealer.connect(endpoint())
    dealer.send(wire.encode(wire.Request(id=1, ask=wire.Follow(since=0))))
    started = time.monotonic()
    for _ in range(300):
        client.submit(spec)
    assert time.monotonic() - started < 60
    seen: list[int] = []
    head = client.ask(wire.ListJobs(limit=1)).seq
    previous = 0
    while previous < head:  # now it reads: nothing is missing
        message = wire.decode_message(dealer.recv())
        if isinstance(message, wire.EventsMessage):
            assert message.previous == previous
            seen += [event.seq for event in message.events]
            previous = message.last
    assert seen[:head] == list(range(1, head + 1))


def _rss(pid: int) -> int:
    """KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError


# --- CURVE ------------------------------------------------------------------------------------------------------------


def keys(folder: Path, name: str) -> str:
    """A key pair on disk; its public key."""
    public, secret = zmq.curve_keypair()
    private_files.write_private(folder / f"{name}.key", public + b" " + secret)
    return public.decode()


def test_curve_lets_in_the_keys_of_the_table_and_nobody_else(pool, tmp_path, spec) -> None:
    state = paths.state_dir()
    ann, bob = keys(tmp_path, "ann"), keys(tmp_path, "bob")
    table = tmp_path / "keys.txt"
    table.write_text(f"# who may connect\n{ann} ann\n\n")
    pool.start("--tcp", "tcp://127.0.0.1:0", "--keys", str(table))
    remote = private_files.read_json(state / "remote.json", endpoints.Endpoint)

    def file_for(name: str, **changes: str) -> str:
        path = tmp_path / f"{name}.json"
        secret = str(tmp_path / f"{name.split('-', maxsplit=1)[0]}.key")
        private_files.write_json(path, msgspec.structs.replace(remote, secret_file=secret, **changes))
        return str(path)

    client = pool.client(endpoint=file_for("ann"))
    job = client.submit(spec)
    assert client.welcome.user == "ann"
    assert pool.client().jobs(job=job)[0].owner == "ann"
    stranger = pool.client(endpoint=file_for("bob"), timeout_s=20)
    with pytest.raises(DaemonUnreachable, match="refused this client's key"):
        stranger.ask(wire.Ping())
    wrong_server = pool.client(endpoint=file_for("ann-elsewhere", server_key=bob), timeout_s=1)
    with pytest.raises(DaemonUnreachable):
        wrong_server.ask(wire.Ping())
    plain = pool.client(endpoint=remote.endpoint, timeout_s=1)
    with pytest.raises(DaemonUnreachable):
        plain.ask(wire.Ping())
    table.write_text(f"{ann} ann\n{bob} bob\n")  # the table is read again when it changes
    late = pool.client(endpoint=file_for("bob"))
    with pytest.raises(Exception, match="belongs to ann"):
        late.ask(wire.CancelJob(job=job))
    with pytest.raises(Exception, match="only an administrator"):
        late.ask(wire.SwitchPolicy(name="fifo", options={"size": "max"}))
    with pytest.raises(Exception, match="may end it"):
        late.ask(wire.Shutdown())
    assert client.ask(wire.CancelJob(job=job)) == wire.Done()


def test_a_key_that_is_struck_off_loses_its_connection_and_a_bad_line_costs_itself(pool, tmp_path, dealer) -> None:
    keys(tmp_path, "ann")
    ann, bob = (tmp_path / "ann.key").read_bytes().split(), keys(tmp_path, "bob")
    table = tmp_path / "keys.txt"
    table.write_text(f"{ann[0].decode()} ann\n{bob} bob\nno key at all\n")
    pool.start("--tcp", "tcp://127.0.0.1:0", "--keys", str(table))
    remote = private_files.read_json(paths.state_dir() / "remote.json", endpoints.Endpoint)
    private_files.write_json(
        tmp_path / "bob.json", msgspec.structs.replace(remote, secret_file=str(tmp_path / "bob.key"))
    )
    other = pool.client(endpoint=str(tmp_path / "bob.json"))
    dealer.curve_publickey, dealer.curve_secretkey = ann
    dealer.curve_serverkey = remote.server_key.encode()
    dealer.reconnect_ivl = -1
    monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    dealer.connect(remote.endpoint)
    assert isinstance(ask(dealer, wire.Ping()), wire.Done)
    assert isinstance(other.ask(wire.Ping()), wire.Done)
    assert not monitor.poll(0)
    table.write_text(f"{bob} bob\nno key at all\n")
    assert monitor.poll(60_000), "its connection is ended though it says nothing"
    assert isinstance(other.ask(wire.Ping()), wire.Done)
    assert pool.log.read_text().count("line 3: expected a public key") == 1
    dealer.disable_monitor()
    monitor.close(linger=0)


# --- two UNIX users ---------------------------------------------------------------------------------------------------

OTHER = """
import os, sys, zmq
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import *
os.setgroups([]); os.setgid(65534); os.setuid(65534)
socket = zmq.Context().socket(zmq.DEALER)
socket.linger, socket.rcvtimeo = 0, 60_000
socket.connect(sys.argv[1])
job = int(sys.argv[2])
said = dict(at=0.0, by="root", id="x", job=job, attempt=1)
asks = [
    wire.Hello(version=wire.VERSION, role="agent"),
    wire.CancelJob(job=job),
    wire.ResizeJob(job=job, min_slots=1, max_slots=1),
    wire.ReportArrived(report=ExitReported(**said, outcome="failed")),
    wire.SwitchPolicy(name="fifo", options={"size": "max"}),
    wire.Shutdown(),
    wire.SubmitJob(spec=JobSpec(name="mine", folder="/tmp/x", python="/p", min_slots=1, max_slots=1), key="stolen"),
    wire.SubmitJob(spec=JobSpec(name="mine", folder="/tmp/x", python="/p", min_slots=1, max_slots=1), key="own"),
    wire.ListJobs(),
]
for number, ask in enumerate(asks, 1):
    socket.send(wire.encode(wire.Request(id=number, ask=ask)))
    while True:
        message = wire.decode_message(socket.recv())
        if isinstance(message, wire.AnswerMessage):
            break
        assert not isinstance(message, wire.OrderMessage) or message.effect.owner != "root", message
    answer = message.answer
    code = answer.code if isinstance(answer, wire.Refused) else type(answer).__name__
    print(code, getattr(answer, "user", ""), [info.owner for info in getattr(answer, "jobs", ())])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_another_unix_user_may_see_and_submit_but_not_touch(pool, spec, tmp_path) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="je-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        path = f"{folder}/s"
        pool.start("--socket", path)
        client = pool.client(endpoint=f"ipc://{path}")
        job = client.submit(spec, "stolen")
        done = subprocess.run(
            [sys.executable, "-c", OTHER, f"ipc://{path}", str(job)],
            check=False, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = [line.split()[0] for line in done.stdout.splitlines()]
        nobody = user_name(65534)
        assert done.stdout.splitlines()[0].split()[1] == nobody
        assert said == [
            "Welcome", "not_allowed", "not_allowed", "not_allowed", "not_allowed", "not_allowed", "bad_request",
            "Submitted", "Jobs",
        ]  # fmt: skip
        assert f"['root', '{nobody}']" in done.stdout.splitlines()[-1]
        assert [info.phase in ("queued", "starting") for info in client.jobs()] == [True, True]
