"""The slot agent with real control groups: a job opens its slot's device and no other, and loses it with its lease.

Two devices that every machine has stand for GPUs.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_elastic.protocol import wire
from jupyter_elastic.protocol.slot_agent_messages import ANSWERS, ASKS, VARIABLE, Enter
from jupyter_elastic.slot_agent.cgroups import pids
from jupyter_elastic.types import AgentOrigin, ExitReported, JobStarted
from tests.live.daemon.conftest import Pool
from tests.support.other_user import OtherUser, needs_root, other_user

SLOTS = [{"index": 0, "device": "/dev/full"}, {"index": 1, "device": "/dev/zero"}]
HOSTS = json.dumps([{"name": "lab", "kind": "gpu", "slots": SLOTS}])
UNIT = Path(__file__).parents[3] / "systemd" / "elastic-slot-agent.service"
TRIES = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "/dev/full,/dev/zero"
for path in ("/dev/full", "/dev/zero", "/dev/null"):
    try:
        os.close(os.open(path, os.O_RDWR))
        print(path, "opened")
    except PermissionError as problem:
        print(path, problem.strerror)
"""
HOLDS = """
import os, socket, sys
from jupyter_elastic.protocol.slot_agent_messages import Enter
from jupyter_elastic.worker.device_access import enter
problem = enter(Enter(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
held = None if problem else open(sys.argv[4], "rb")
print(problem or "in", flush=True)
sys.stdin.read()
"""


def _mounts() -> dict[int, Path]:
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = {}
    for _, where, kind, options, *_ in lines:
        if kind == "cgroup2" or (kind == "cgroup" and "devices" in options.split(",")):
            found.setdefault(2 if kind == "cgroup2" else 1, Path(where))
    return found


class Guard:
    """A slot agent in a control group of its own."""

    def __init__(self, version: int, folder: Path, pool: Pool) -> None:
        self.socket = folder / "slot-agent" / "s"
        self.group = _mounts()[version] / f"je-test-{os.getpid()}"
        self.log = folder / "slot-agent.log"
        self._version = version
        self._endpoint = f"ipc://{folder}/s"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """With the rights that the unit leaves it."""
        self.group.mkdir(exist_ok=True)
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.read(UNIT)
        rights = unit["Service"]["CapabilityBoundingSet"].lower().replace("cap_", "+").split()
        notified = self.socket.parent.parent / "notify"
        notified.unlink(missing_ok=True)
        with self.log.open("ab") as log, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(str(notified))
            listener.settimeout(60)
            self.process = subprocess.Popen(
                ["setpriv", f"--bounding-set=-all,{','.join(rights)}",
                 "sh", "-c", 'echo $$ > "$0"/cgroup.procs; exec "$@"', self.group,
                 sys.executable, "-m", "jupyter_elastic.slot_agent", "--cgroup", str(self._version),
                 "--endpoint", self._endpoint, "--socket", self.socket],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "NOTIFY_SOCKET": str(notified)},
            )  # fmt: skip
            try:
                assert listener.recv(100) == b"READY=1"
            except TimeoutError:
                self.close()
                pytest.fail(self.log.read_text())

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def running(self, slot: int) -> list[int]:
        return [pid for group in (self.group / "leases" / f"slot-{slot}").glob("*/") for pid in pids(group)]

    def close(self) -> None:
        self.kill()
        for group in sorted((path for path in self.group.glob("**/")), key=lambda path: -len(path.parts)):
            while left := pids(group):
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
            group.rmdir()


@pytest.fixture(params=[1, 2])
def guard(request: pytest.FixtureRequest, pool: Pool, open_folder: Path) -> Iterator[Guard]:
    if os.getuid() != 0 or request.param not in _mounts() or shutil.which("setpriv") is None:
        pytest.skip(f"no root, no setpriv, or no control groups of version {request.param} with devices")
    hosts = open_folder / "hosts.json"
    hosts.write_text(HOSTS)
    pool.start("--hosts", str(hosts), "--socket", f"{open_folder}/s")
    made = Guard(request.param, open_folder, pool)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def other(guard: Guard, open_folder: Path) -> Iterator[OtherUser]:
    with other_user() as user:
        user.environment |= {"JUPYTER_ELASTIC_ENDPOINT": f"ipc://{open_folder}/s", VARIABLE: str(guard.socket)}
        yield user


def test_a_worker_opens_the_device_of_its_slot_and_no_other(guard: Guard, other: OtherUser) -> None:
    script = other.home / "tries.py"
    script.write_text(TRIES)
    code, said, errors = other.elastic("run", "--gpus", "1", "--engine", "process", str(script))
    assert code == 0, errors + guard.log.read_text()
    assert said.splitlines() == ["/dev/full opened", "/dev/zero Operation not permitted", "/dev/null opened"]


def test_what_is_left_of_a_lease_is_ended_and_nobody_else_gets_in(
    guard: Guard, other: OtherUser, pool: Pool, spec
) -> None:
    """It says that it is gone, and holds the device open."""
    client = pool.client()
    events = client.events(0)
    agent = pool.client()  # of its own: a silent agent is forgotten, and its streams of events with it
    hello = wire.Hello(version=wire.VERSION, role="agent", place=AgentOrigin(place="here"))
    agent.ask(hello)
    client.ask(wire.SubmitJob(spec=spec, key="one"))
    while not isinstance((started := next(events).data), JobStarted):
        pass
    (slot,) = started.slots
    env = {**os.environ, VARIABLE: str(guard.socket)}

    def asks(*words: str, user: OtherUser | None = None) -> subprocess.Popen[str]:
        arguments = ("-c", HOLDS, *words, "/dev/full")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        if user is None:
            return subprocess.Popen([sys.executable, *arguments], env=env, text=True, **pipes)
        return user.start(*arguments, stdout=subprocess.PIPE)

    def said(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    mine, theirs, earlier, elsewhere = (
        asks("1", "1", slot), asks("1", "1", slot, user=other), asks("1", "0", slot), asks("1", "1", "lab:1"),
    )  # fmt: skip
    try:
        assert said(mine) == "in"
        assert guard.running(0) == [mine.pid]
        for process in (theirs, earlier, elsewhere):
            assert "has not leased" in said(process)
        guard.kill()
        guard.start()  # it goes on where the one before it stood
        assert guard.running(0) == [mine.pid]
        client.ask(wire.CancelJob(job=1))
        stamp = {"at": 0.0, "by": "", "id": "", "job": 1, "attempt": 1}
        agent.ask(hello)
        agent.ask(wire.ReportArrived(report=ExitReported(**stamp, outcome="cancelled")))
        assert mine.wait(30) == -signal.SIGKILL
        for process in (earlier, elsewhere):
            assert process.poll() is None, "who is not in a group is none of its business"
        late = asks("1", "1", slot)
        assert "has not leased" in said(late)
        late.kill()
    finally:
        for process in (mine, theirs, earlier, elsewhere):
            process.kill()
            process.wait()


FLOODS = """
import contextlib, os, socket, time
from jupyter_elastic.protocol.slot_agent_messages import ASKS, Enter
connections = [socket.socket(socket.AF_UNIX) for _ in range(300)]
for one in connections:
    one.connect(os.environ["JUPYTER_ELASTIC_SLOT_AGENT"])
silent, asking = connections[:32], connections[32:]
for one in asking:
    with contextlib.suppress(OSError):
        one.sendall(ASKS.encode(Enter(99, 1, "lab:0")))
def answer(one):
    with contextlib.suppress(ConnectionResetError):
        return one.recv(1)
    return b""
print(sum(answer(one) != b"" for one in asking), flush=True)
time.sleep(60)
"""


def test_nobody_is_kept_waiting_by_garbage_and_silence(guard: Guard, other: OtherUser) -> None:
    with contextlib.ExitStack() as stack:
        flood = stack.enter_context(other.start("-c", FLOODS, stdout=subprocess.PIPE))
        stack.callback(flood.kill)
        assert flood.stdout is not None
        assert flood.stdout.readline() == "0\n", "who has 32 connections is answered on no other"
        garbage = (b"\x01\xff\xff\xff", b"\x01\x00\x00\x02\xc1\xc1", b"GET / HTTP/1.1\r\n\r\n", os.urandom(9000))
        for content in (*garbage, *[b""] * 20):
            connected = stack.enter_context(socket.socket(socket.AF_UNIX))
            connected.settimeout(30)
            connected.connect(str(guard.socket))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connected.sendall(content)
        with socket.socket(socket.AF_UNIX) as last:
            last.settimeout(30)
            last.connect(str(guard.socket))
            last.sendall(ASKS.encode(Enter(99, 1, "lab:0\n" + "x" * 200)))
            answer = ANSWERS.receive(last.makefile("rb"))
    assert answer is not None
    assert "has not leased" in answer.problem
    assert guard.process is not None
    assert guard.process.poll() is None


@needs_root
def test_where_it_can_not_guard_it_says_so(pool: Pool, open_folder: Path) -> None:
    hosts = open_folder / "hosts.json"
    hosts.write_text('[{"name": "lab", "kind": "gpu", "slots": [{"index": 0, "device": "/dev/nothing"}]}]')
    pool.start("--hosts", str(hosts), "--socket", f"{open_folder}/s")
    words = [sys.executable, "-m", "jupyter_elastic.slot_agent", "--endpoint", f"ipc://{open_folder}/s"]

    def told(*more: str, **options: object) -> str:
        done = subprocess.run([*words, *more], capture_output=True, text=True, check=False, timeout=60, **options)
        assert done.returncode == 2
        return done.stderr

    assert "lab:0: there is no /dev/nothing" in told("--socket", f"{open_folder}/slot-agent/s")
    hosts.write_text(HOSTS)
    pool.kill()
    pool.start("--hosts", str(hosts), "--socket", f"{open_folder}/s")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        assert "is not a folder that only root can write" in told("--socket", f"{folder}/s")
    with other_user() as user:
        started = user.start("-m", "jupyter_elastic.slot_agent", stderr=subprocess.PIPE)
        _, errors = started.communicate(timeout=60)
        assert started.returncode == 2
        assert re.search("only root can", errors)
