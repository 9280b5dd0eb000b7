"""What one user may have of a shared pool, and what the others notice when that user wants more."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from msgspec.structs import replace

from jupyter_elastic.client import AsyncClient, Client
from jupyter_elastic.platform import endpoints, paths, private_files
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import AgentOrigin, JobEnded, JobSpec
from jupyter_elastic.types.errors import BadRequest, NotAllowed, TooFast, TooMuch

MANY = 5_000 if "JUPYTER_ELASTIC_TEST_EVERYTHING" in os.environ else 300


class Users:
    """Users of a pool over TCP, each known by a key: any number of them, without being root."""

    def __init__(self, pool, folder: Path, *names: str) -> None:
        self.pool, self.folder = pool, folder
        keys = {}
        for name in names:
            public, secret = zmq.curve_keypair()
            private_files.write_private(folder / f"{name}.key", public + b" " + secret)
            keys[name] = public.decode()
        self.table = folder / "keys.txt"
        self.table.write_text("".join(f"{key} {name}\n" for name, key in keys.items()))

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.pool.start("--tcp", "tcp://127.0.0.1:0", "--keys", str(self.table), *arguments, env=env)
        self.remote = self.found()

    @staticmethod
    def found() -> endpoints.Endpoint:
        """Where the daemon says that it is."""
        return private_files.read_json(paths.state_dir() / "remote.json", endpoints.Endpoint)

    def endpoint(self, name: str) -> str:
        """The file that a client of this user is given."""
        path = self.folder / f"{name}.json"
        private_files.write_json(path, replace(self.remote, secret_file=str(self.folder / f"{name}.key")))
        return str(path)

    def client(self, name: str, **options: float) -> Client:
        return self.pool.client(endpoint=self.endpoint(name), **options)

    @contextlib.contextmanager
    def dealer(self, name: str) -> Iterator[zmq.Socket[bytes]]:
        """A bare socket of this user."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger, socket.rcvtimeo, socket.sndhwm, socket.rcvhwm = 0, 60_000, 0, 0
            public, secret = (self.folder / f"{name}.key").read_bytes().split()
            socket.curve_serverkey = self.remote.server_key.encode()
            socket.curve_publickey, socket.curve_secretkey = public, secret
            socket.connect(self.remote.endpoint)
            yield socket


@pytest.fixture
def users(pool, tmp_path: Path) -> Users:
    """Three of them, of a pool that is not started yet."""
    return Users(pool, tmp_path, "ann", "bob", "carl")


def test_a_users_unfinished_jobs_are_limited_and_the_refusal_says_who_can_raise_it(users, pool, spec, tmp_path) -> None:
    users.start("--max-jobs", "3", "--admin", "bob")
    ann, spec = users.client("ann"), replace(spec, min_slots=4, max_slots=4)
    jobs = [ann.submit(spec, f"key {number}") for number in range(3)]
    with pytest.raises(TooMuch, match=r"ann has 3 unfinished jobs.*--max-jobs.*administrator \(bob, root\)"):
        ann.submit(spec)
    assert ann.submit(spec, "key 0") == jobs[0], "a repeated submit is no new job"
    assert [users.client("bob").submit(spec) for _ in range(5)], "an administrator's are not counted"
    ann.ask(wire.CancelJob(job=jobs[2]))
    assert ann.submit(spec) > jobs[2]
    pool.kill()
    shares = tmp_path / "shares.toml"
    shares.write_text("[users.ann]\nmax_jobs = 4\n[default]\nmax_jobs = 0\n")
    users.start("--max-jobs", "3", "--shares", str(shares))
    assert users.client("ann").submit(spec), "what the file of shares says of a user goes before"
    with pytest.raises(TooMuch, match="ann has 4 unfinished jobs"):
        users.client("ann").submit(spec)


def test_one_interactive_job_at_a_time_for_minutes_and_the_file_of_shares(users, spec, tmp_path) -> None:
    shares = tmp_path / "shares.toml"
    shares.write_text("[users.bob]\ninteractive_s = 0\n")
    users.start("--shares", str(shares))
    ann, spec = users.client("ann"), replace(spec, interactive=True)
    first = ann.submit(spec)
    assert ann.jobs(job=first)[0].spec.max_time_s == 600.0
    with pytest.raises(TooMuch, match=rf"ann has 1 interactive job \({first}\).*leave --interactive out.*\(root\)"):
        ann.submit(spec)
    assert ann.submit(replace(spec, interactive=False)), "others are not counted"
    with pytest.raises(NotAllowed, match="bob may not have interactive jobs"):
        users.client("bob").submit(spec)
    with pytest.raises(NotAllowed, match="may run for 600 s at most, not 601"):
        ann.submit(replace(spec, max_time_s=601.0))
    shares.write_text("[default]\ninteractive_jobs = 2\ninteractive_s = 60\n")
    bob = users.client("bob")
    while True:  # it is read again
        with contextlib.suppress(NotAllowed):
            assert bob.submit(spec)
            break
    assert ann.jobs(job=ann.submit(spec))[0].spec.max_time_s == 60.0
    with pytest.raises(TooMuch, match="ann has 2 interactive jobs"):
        ann.submit(spec)


def test_everybody_has_so_many_sessions_whose_cells_end_in_time(users, spec, tmp_path) -> None:
    shares = tmp_path / "shares.toml"
    shares.write_text("[users.bob]\nmax_sessions = 1\nmax_time_s = 60\n")
    users.start("--shares", str(shares))
    ann, bob, spec = users.client("ann"), users.client("bob"), replace(spec, preemptible=False)
    for asked in ({}, {"interactive": True}, {"hold_s": 30.0}):
        with pytest.raises(NotAllowed, match="--no-preempt"):
            ann.submit(replace(spec, **asked))
    jobs = [
        ann.submit(replace(spec, session=f"s{number}", engine=engine, min_slots=1, max_slots=most, hold_s=hold_s))
        for number, (engine, most, hold_s) in enumerate([("torch", 1, 0.0), ("process", 4, 600.0), ("torch", 2, 5.0)])
    ]
    jobs.append(ann.submit(replace(spec, session="s3", interactive=True)))
    assert [ann.jobs(job=job)[0].spec.max_time_s for job in jobs] == [14_400.0] * 3 + [600.0]
    assert ann.submit(replace(spec, session="s0", max_time_s=14_400.0)), "a further cell is no further session"
    with pytest.raises(TooMuch, match=r"ann wait or run in 4 sessions \(s0, s1, s2, s3\).*`max_sessions`.*\(root\)"):
        ann.submit(replace(spec, session="s4"))
    with pytest.raises(TooMuch, match=r"4 sessions"):  # that it may be paused now is easily changed later
        ann.submit(replace(spec, session="s4", preemptible=True))
    with pytest.raises(NotAllowed, match=r"cells of sessions of ann may run for 14400 s at most, not 14401: .*root"):
        ann.submit(replace(spec, session="s0", max_time_s=14_401.0))
    one = bob.submit(replace(spec, session="s0"))
    assert bob.jobs(job=one)[0].spec.max_time_s == 60.0
    bob.ask(wire.ResizeJob(job=one, preemptible=True))
    bob.ask(wire.ResizeJob(job=one, preemptible=False))
    with pytest.raises(TooMuch, match=r"1 session \(s0\)"):
        bob.submit(replace(spec, session="s1"))
    bob.ask(wire.CancelJob(job=one))
    assert bob.submit(replace(spec, session="s1"))
    assert users.pool.client().submit(replace(spec, session="s4")), "the administrators have no such limit"


def test_where_a_session_could_get_gpus_only_its_cell_is_refused_before_it_waits(users, spec, tmp_path) -> None:
    hosts, slots = tmp_path / "hosts.json", [{"index": index, "device": f"GPU-{index}"} for index in range(2)]
    lab = {"name": "lab", "kind": "gpu", "slots": slots, "labels": {"gpu": "A100"}}
    spec, refused = replace(spec, session="s"), "sessions are not for the GPUs of a shared pool.*without --session"

    def start(*options: str) -> None:
        hosts.write_text(json.dumps([lab]))
        users.start("--hosts", str(hosts), *options)

    start("--lease", "60")
    for client in (users.client("ann"), users.pool.client()):
        for asked in (spec, replace(spec, host="lab", min_slots=2), replace(spec, on={"gpu": "A100"}, engine="torch")):
            with pytest.raises(NotAllowed, match=refused):
                client.submit(asked)
    assert users.client("ann").submit(replace(spec, session="")), "a job without a session is served"
    users.pool.kill()
    lab["slots"] = [{"index": 2}, *slots]
    start("--lease", "60")
    assert users.client("ann").submit(spec), "it may get the slot of a CPU"
    users.pool.kill()
    lab["slots"] = slots
    start("--lease", "0")
    assert users.client("ann").submit(spec), "where no lease runs out, drivers serve it"


def test_a_spec_has_so_many_bytes_and_no_more(users, spec) -> None:
    users.start()
    long = "/" + "x" * 4095
    assert users.client("ann").submit(replace(spec, folder=long, notebook=long, python=long))
    with pytest.raises(BadRequest, match=r"16,384 are allowed"):
        users.client("ann").submit(replace(spec, folder="/" + "\u20ac" * 4095, notebook="\u20ac" * 4096))


def test_a_users_streams_are_limited_over_all_connections(users) -> None:
    users.start()
    clients = [users.client("ann") for _ in range(3)]
    for number in range(2000):
        clients[number // 1000].ask(wire.Follow(stream=number % 1000, since=10**15))
    with pytest.raises(TooMuch, match="follows 2,000 streams"):
        clients[2].ask(wire.Follow(since=10**15))
    clients[1].close()
    while True:
        with contextlib.suppress(TooMuch):
            clients[2].ask(wire.Follow(since=10**15))
            break


def submit_frames(spec: JobSpec, count: int) -> list[bytes]:
    return [
        wire.encode(wire.Request(id=number, ask=wire.SubmitJob(spec=spec, key=f"{spec.name} {number}")))
        for number in range(1, count + 1)
    ]


def test_who_asks_too_fast_is_told_when_to_come_again_and_others_are_answered(users, spec) -> None:
    users.start("--max-asks", "10")
    bob = users.client("bob")
    with users.dealer("ann") as flood:
        for frame in submit_frames(spec, 60):
            flood.send(frame)
        answers = [wire.decode_message(flood.recv()) for _ in range(60)]
        assert sorted(message.id for message in answers) == list(range(1, 61)), "nobody is left without an answer"
        refused = [message.answer for message in answers if isinstance(message.answer, wire.Refused)]
        assert refused
        assert all(answer.code == TooFast.code for answer in refused)
        assert "ask again after" in refused[0].message
        assert "administrator (root)" in refused[0].message
        assert isinstance(bob.ask(wire.Ping()), wire.Done)


def test_who_goes_on_all_the_same_is_hung_up_on(users, spec) -> None:
    users.start("--max-asks", "10")
    bob = users.client("bob")
    with users.dealer("ann") as flood:
        monitor = flood.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        frames = submit_frames(spec, 100)
        while not monitor.poll(0):
            for frame in frames:
                flood.send(frame)
        flood.disable_monitor()
        monitor.close(linger=0)
    assert isinstance(bob.ask(wire.Ping()), wire.Done)
    assert users.pool.stop() == 0
    assert "ann floods the pool" in users.pool.log.read_text()


def test_floods_and_agents_that_wait_are_counted_in_the_log_as_in_the_audit(users, spec) -> None:
    users.start("--max-asks", "10")
    frames = submit_frames(spec, 100)
    for _ in range(4):
        with users.dealer("ann") as flood:
            monitor = flood.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            while not monitor.poll(0):
                for frame in frames:
                    flood.send(frame)
            flood.disable_monitor()
            monitor.close(linger=0)
    first, second = users.client("bob"), users.client("bob")
    hello = wire.Hello(version=wire.VERSION, role="agent", place=AgentOrigin(place="here"))
    first.ask(hello)
    first.submit(spec)
    for _ in range(8):
        with pytest.raises(NotAllowed, match="the agent of bob is another one"):
            second.ask(replace(hello, place=AgentOrigin(place="there")))
    assert users.pool.stop() == 0
    lines = users.pool.log.read_text().splitlines()
    for words, least in (("ann floods the pool", 4), ("the agent of bob is another one", 8)):
        told = [re.search(r"refused to \w+ (\d+) times: ", line) for line in lines if words in line]
        assert 1 <= len(told) <= 2, "the first soon, and the others at the end"
        assert sum(int(found[1]) for found in told if found is not None) >= least
    users.start("--max-asks", "10")
    rows = users.pool.client().ask(wire.ReadAudit(user="ann")).rows
    assert any("floods the pool" in row.reason for row in rows)


def test_a_client_that_is_told_so_waits_and_asks_again(users, spec) -> None:
    users.start("--max-asks", "100")

    async def story() -> list[int]:
        async with AsyncClient(users.endpoint("ann")) as client:
            return await asyncio.gather(*(client.submit(spec) for _ in range(550)))

    assert len(set(asyncio.run(story()))) == 550


def test_a_personal_pool_has_no_such_limits(pool, spec) -> None:
    client = pool.start().client()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo, socket.sndhwm, socket.rcvhwm = 0, 60_000, 0, 0
        socket.connect(endpoints.find().endpoint)
        for frame in submit_frames(spec, 6000):
            socket.send(frame)
        answers = [wire.decode_message(socket.recv()).answer for _ in range(6000)]
    assert all(isinstance(answer, wire.Submitted) for answer in answers)
    assert isinstance(client.ask(wire.Ping()), wire.Done)


def elastic(users: Users, name: str, *words: str) -> tuple[int, str]:
    """`jupyter elastic ...` by this user: the exit code, and all that it wrote."""
    environment = {**os.environ, endpoints.ENDPOINT_VARIABLE: users.endpoint(name), "COLUMNS": "300"}
    command = [sys.executable, "-m", "jupyter_elastic.cli", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def cancel(users: Users, name: str, *words: str) -> tuple[int, str]:
    """`jupyter elastic job cancel` by this user."""
    return elastic(users, name, "cancel", *words)


def test_many_jobs_are_cancelled_by_one_ask_that_keeps_nobody_waiting(users, spec, record_property) -> None:
    """By somebody who may ask ten times a second, with a hundred asks in reserve."""
    users.start("--max-asks", "10", "--admin", "bob")
    ann, bob, carl = (users.client(name) for name in ("ann", "bob", "carl"))
    bob.ask(wire.Hello(version=wire.VERSION, role="agent"))  # his first jobs take all slots
    with users.dealer("bob") as socket:
        for frame in submit_frames(spec, MANY):
            socket.send(frame)
        for _ in range(MANY):
            socket.recv()
    mine = [ann.submit(spec) for _ in range(30)]
    theirs = carl.submit(spec)
    for words in (("--user", "bob"), (str(mine[0]), str(theirs))):
        code, said = cancel(users, "ann", *words)
        assert (code, "belongs to" in said, "Traceback" in said) == (1, True, False), said
    assert cancel(users, "ann", str(mine[0]), "100000")[0] == 1
    assert ann.jobs(job=mine[0])[0].phase == "queued", "all or none"
    assert cancel(users, "ann", *map(str, mine[:2])) == (0, f"cancelling: {mine[0]}, {mine[1]}\n")
    assert cancel(users, "ann", *map(str, mine[2:])) == (0, "cancelling: 28 jobs\n")
    began = time.monotonic()
    with users.dealer("bob") as socket:
        socket.send(wire.encode(wire.Request(id=1, ask=wire.CancelJobs(owner="bob", reason="enough"))))
        socket.send(wire.encode(wire.Request(id=2, ask=wire.Ping())))
        answers = [wire.decode_message(socket.recv()) for _ in range(2)]
    record_property("seconds", time.monotonic() - began)
    assert [message.id for message in answers] == [2, 1], "others are answered meanwhile"
    assert len(answers[1].answer.jobs) == MANY
    assert [info.job for info in bob.jobs() if info.phase != "stopping"] == [theirs]
    ends = [event for event in bob.events(follow=False) if isinstance(event.data, JobEnded) and event.by == "bob"]
    assert {event.data.reason for event in ends} == {"enough"}
    assert cancel(users, "ann", "--user", "ann") == (0, "cancelling: no job\n")


def test_everybody_has_the_account_of_his_own_jobs_and_administrators_of_all(users, spec) -> None:
    users.start("--admin", "bob")
    clients = {name: users.client(name) for name in ("ann", "bob", "carl")}
    users.pool.client().ask(wire.BeginDrain())
    for client in clients.values():
        client.ask(wire.CancelJob(job=client.submit(spec)))
        client.submit(spec)
    told = {name: elastic(users, name, "jobs", "--ended", "--csv", "--since", "2026-01-01") for name in clients}
    rows = {name: list(csv.DictReader(io.StringIO(said))) for name, (_, said) in told.items()}
    assert {name: [(row["job"], row["user"]) for row in found] for name, found in rows.items()} == {
        "ann": [("1", "ann")], "bob": [("1", "ann"), ("3", "bob"), ("5", "carl")], "carl": [("5", "carl")],
    }  # fmt: skip
    (one,) = rows["ann"]
    assert list(one)[:6] == ["job", "user", "group", "submit", "start", "end"]
    assert (one["start"], one["outcome"]) == ("", "cancelled")
    assert elastic(users, "ann", "jobs", "--ended", "--since", one["end"], "--csv")[1] == told["ann"][1]
    assert elastic(users, "ann", "jobs", "--ended", "--since", "2100-01-01 08:30")[1] == "no job has ended since then\n"
    (row,) = json.loads(elastic(users, "ann", "jobs", "--ended", "--json")[1])
    assert (row["job"], row["outcome"]) == (1, "cancelled")
    for words, says in (
        (("--since", "2026-01-01"), "--ended"), (("--csv",), "--ended"),
        (("--ended", "--since", "last week"), "2026-11-01T08:30"),
        (("--ended", "--since", "0001-01-01"), "2026-11-01T08:30"),
    ):  # fmt: skip
        code, said = elastic(users, "ann", "jobs", *words)
        assert (code != 0, says in said, "Traceback" in said) == (True, True, False), said
    assert elastic(users, "ann", "usage", "--by", "month,user", "--csv")[1].startswith("month,user,slot_hours,")
    assert "day, month, user, group" in elastic(users, "ann", "usage", "--by", "year")[1]


WAITS_FOR_A_CORE = """
import time
from jupyter_elastic.scheduler import requests
answer = requests.answer
def late(*arguments):
    time.sleep(0.2)
    return answer(*arguments)
requests.answer = late
"""


def test_that_the_machine_is_busy_is_no_users_doing(users, tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WAITS_FOR_A_CORE)
    users.start("--max-asks", "20", env={"PYTHONPATH": str(tmp_path)})
    with users.dealer("ann") as socket:
        for number in range(1, 4):
            socket.send(wire.encode(wire.Request(id=number, ask=wire.Ping())))
            assert wire.decode_message(socket.recv()) == wire.AnswerMessage(id=number, answer=wire.Done())


def test_others_are_answered_while_a_long_list_is_built(pool, spec) -> None:
    pool.start()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo, socket.sndhwm, socket.rcvhwm = 0, 60_000, 0, 0
        socket.connect(endpoints.find().endpoint)
        for frame in submit_frames(spec, 500):
            socket.send(frame)
        assert all(isinstance(wire.decode_message(socket.recv()).answer, wire.Submitted) for _ in range(500))
        pool.process.send_signal(signal.SIGSTOP)
        socket.send(wire.encode(wire.Request(id=1, ask=wire.ListJobs())))
        socket.send(wire.encode(wire.Request(id=2, ask=wire.Ping())))
        time.sleep(0.2)  # both are in the daemon's socket when it goes on
        pool.process.send_signal(signal.SIGCONT)
        answers = [wire.decode_message(socket.recv()) for _ in range(2)]
    assert [type(message.answer) for message in answers] == [wire.Done, wire.Jobs]
    assert len(answers[1].answer.jobs) == 500
