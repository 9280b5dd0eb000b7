"""What a crowd costs the daemon: one user's floods as another notices them, connections that come and go, a long queue.

Each figure is a ratio within one run: the same pool, daemon and machine before and during. Users are keys over TCP, so
that any number of them needs no root.

Whoever floods also takes processor time, which the other user's own process and the daemon lack on a small machine
whatever the daemon does. So each flood has a control, a process that takes as much and asks nothing: the ratio to it is
the daemon's part. Beside that stands what a busy machine does not change: the processor time of the daemon's turns.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import zmq
from msgspec.structs import replace

from benchmarks.harness import row
from benchmarks.submits import spec
from jupyter_elastic.platform import endpoints, paths
from jupyter_elastic.protocol import wire

QUEUED = 5_000
"""Jobs of the one who floods, as many as one user may have."""
ACKS = 250
PACE_S = 0.02
"""Between two submits of the other user: half of what one connection may ask."""
CONNECTIONS, WINDOW = 10, 4
"""Of a flood, and what is in flight on each."""
CLIENTS, CONNECTS = 1_000, 10
LATER_S = 60
LONG = 100_000
IDLE_S = 60

MiB = 1024 * 1024
largest = replace(
    spec(), **{name: "/" + "\u20ac" * most for name, most in (("folder", 1300), ("notebook", 1300), ("python", 1300))}
)
FLOODS: dict[str, Callable[[int], wire.AnyAsk]] = {
    "pings": lambda _: wire.Ping(),
    "submits": lambda number: wire.SubmitJob(spec=spec(), key=f"flood {os.getpid()} {number}"),
    "submits of the largest legal size": lambda number: wire.SubmitJob(
        spec=replace(largest, folder=f"/{number:09}" + "\u20ac" * 1297), key=f"flood {os.getpid()} {number}"
    ),
    "repeated submits": lambda number: wire.SubmitJob(spec=spec(), key=f"many {number % QUEUED}"),
    "lists of all jobs": lambda _: wire.ListJobs(all=True, limit=3_000),
    "views of the pool": lambda _: wire.ReadView(),
    "explanations": lambda number: wire.ExplainJob(job=1 + number % QUEUED),
    "event streams from the beginning": lambda number: wire.Follow(stream=number % 100),
    "usage": lambda _: wire.ReadUsage(),
    "policies": lambda _: wire.ListPolicies(),
    "another's jobs": lambda _: wire.ListJobs(all=True, owner="carl", limit=3_000),
}


class Pool:
    """A daemon that several users share, each known by a key."""

    def __init__(
        self, folder: Path, *arguments: str, users: tuple[str, ...] = ("ann", "bob", "carl"), measured: bool = False
    ) -> None:
        """`measured`: with `turns`."""
        self.folder = folder
        self.keys = {user: zmq.curve_keypair() for user in users}
        table = folder / "keys.txt"
        table.write_text("".join(f"{public.decode()} {user}\n" for user, (public, _) in self.keys.items()))
        environment = {**os.environ, paths.DIR_VARIABLE: str(folder / "pool")}
        self._turns = folder / "turns.json"
        module = ["benchmarks.turns", str(self._turns)] if measured else ["jupyter_elastic.scheduler"]
        command = [sys.executable, "-m", *module, "--slots", "4", *arguments]
        with (folder / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--tcp", "tcp://127.0.0.1:0", "--keys", str(table)],
                stdin=subprocess.DEVNULL, stderr=log, env=environment, cwd=Path(__file__).parents[1],
            )  # fmt: skip
        before = os.environ.get(paths.DIR_VARIABLE)
        os.environ[paths.DIR_VARIABLE] = str(folder / "pool")
        try:
            while (found := endpoints.living_daemon()) is None or found.pid != self.process.pid:
                if self.process.poll() is not None:
                    raise RuntimeError((folder / "daemon.log").read_text()[-2000:])
                time.sleep(0.01)
        finally:
            os.environ.pop(paths.DIR_VARIABLE)
            if before is not None:
                os.environ[paths.DIR_VARIABLE] = before
        self.unix = found.endpoint
        remote = json.loads((folder / "pool" / "remote.json").read_bytes())
        self.tcp, self.public = remote["endpoint"], remote["server_key"].encode()

    @contextlib.contextmanager
    def dealer(self, user: str = "") -> Iterator[zmq.Socket[bytes]]:
        """A socket of this user; without a name of the daemon's own, who has no limits."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger, socket.rcvtimeo, socket.sndhwm, socket.rcvhwm = 0, 120_000, 0, 0
            if user:
                socket.curve_publickey, socket.curve_secretkey = self.keys[user]
                socket.curve_serverkey = self.public
            socket.connect(self.tcp if user else self.unix)
            yield socket

    def memory(self) -> int:
        """Bytes of the daemon that nobody shares, and its part of what others do (PSS)."""
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
        raise AssertionError

    def wakeups(self) -> int:
        """How often one of its threads has begun to run again."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            lines = (task / "status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))
        return total

    def cpu_s(self) -> float:
        """Seconds of a core so far."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    @contextlib.contextmanager
    def turns(self) -> Iterator[list[float]]:
        """The processor time of each turn of the daemon's loop meanwhile, in seconds; filled in at the end."""
        found: list[float] = []
        self._turns.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        yield found
        self.process.send_signal(signal.SIGUSR2)
        while not self._turns.exists():
            time.sleep(0.01)
        found += json.loads(self._turns.read_bytes())

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def a_pool(*arguments: str, users: tuple[str, ...] = ("ann", "bob", "carl"), measured: bool = False) -> Iterator[Pool]:
    """A fresh one on this disk."""
    folder = Path(tempfile.mkdtemp(prefix="je-crowd-", dir=Path(__file__).parent))
    try:
        pool = Pool(folder, *arguments, users=users, measured=measured)
        try:
            yield pool
        finally:
            pool.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ask(socket: zmq.Socket[bytes], asked: wire.AnyAsk) -> wire.AnyAnswer:
    """The answer to one ask on a socket that is asked nothing else."""
    socket.send(wire.encode(wire.Request(id=1, ask=asked)))
    while True:
        message = wire.decode_message(socket.recv())
        if isinstance(message, wire.AnswerMessage):
            return message.answer


def submit_many(socket: zmq.Socket[bytes], count: int, prefix: str = "many") -> None:
    """Submit so many jobs, 256 in flight; where the pool says that it is too fast, later again."""
    waiting, open_ = list(range(count)), set[int]()
    while waiting or open_:
        while waiting and len(open_) < 256:
            number = waiting.pop()
            open_.add(number)
            job = wire.SubmitJob(
                spec=replace(spec(), folder=f"/home/alice/.local/share/{number:032}"), key=f"{prefix} {number}"
            )
            socket.send(wire.encode(wire.Request(id=number, ask=job)))
        message = wire.decode_message(socket.recv())
        assert isinstance(message, wire.AnswerMessage)
        open_.remove(message.id)
        if isinstance(message.answer, wire.Refused):
            assert message.answer.code == "too_fast", message.answer
            waiting.append(message.id)
            time.sleep(0.02)


def acknowledgements(socket: zmq.Socket[bytes], count: int, pace_s: float = PACE_S) -> list[float]:
    """Seconds from submit to acknowledgement of so many jobs, at a pace that nobody refuses."""
    found = []
    for number in range(count):
        key = f"ack {time.monotonic_ns()} {number}"
        began = time.perf_counter()
        answer = ask(socket, wire.SubmitJob(spec=spec(), key=key))
        found.append(time.perf_counter() - began)
        assert isinstance(answer, wire.Submitted), answer
        time.sleep(pace_s)
    return found


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


# --- floods -----------------------------------------------------------------------------------------------------------


def flood(kind: str, endpoint: str, public: str, mine: str, secret: str) -> None:
    """Ask without end on several connections; who is refused asks again soon, who is hung up on connects again."""
    numbers = itertools.count()
    with zmq.Context() as context:
        poller = zmq.Poller()
        heard: dict[zmq.Socket[bytes], float] = {}
        while True:
            while len(heard) < CONNECTIONS:
                socket = context.socket(zmq.DEALER)
                socket.linger, socket.sndhwm, socket.rcvhwm = 0, 0, 0
                socket.curve_publickey, socket.curve_secretkey = mine.encode(), secret.encode()
                socket.curve_serverkey = public.encode()
                socket.connect(endpoint)
                poller.register(socket, zmq.POLLIN)
                heard[socket] = time.monotonic()
                for _ in range(WINDOW):
                    socket.send(asked(kind, next(numbers)))
            for socket, _ in poller.poll(500):
                with contextlib.suppress(zmq.Again):
                    while True:
                        message = wire.decode_message(socket.recv(zmq.NOBLOCK))
                        heard[socket] = time.monotonic()
                        if isinstance(message, wire.AnswerMessage):
                            if isinstance(message.answer, wire.Refused):
                                time.sleep(0.002)
                            socket.send(asked(kind, next(numbers)))
            for socket in [socket for socket, at in heard.items() if at < time.monotonic() - 2]:
                del heard[socket]
                poller.unregister(socket)
                socket.close()


def asked(kind: str, number: int) -> bytes:
    """The frame of a flood's ask."""
    return wire.encode(wire.Request(id=number, ask=FLOODS[kind](number)))


def silent(endpoint: str, count: int) -> None:
    """Open connections as fast as they are taken, a third of which begin a handshake, and leave them open."""
    import resource
    import socket as sockets

    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100,) * 2)
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    while True:
        opened = []
        for number in range(count):
            try:
                one = sockets.create_connection((host, int(port)), timeout=2)
                if number % 3 == 0:
                    one.sendall(b"\xff" + b"\0" * 8 + b"\x7f\x03")
            except OSError:
                continue
            opened.append(one)
        for one in opened:
            one.close()


def burn(cores: float) -> None:
    """Take so much of the processors, 5 ms at a time, and do nothing else."""
    while cores > 1:
        if os.fork() == 0:
            cores = 1.0
        else:
            cores -= 1
    while True:
        until = time.monotonic() + 0.005
        while time.monotonic() < until:
            pass
        time.sleep(0.005 / cores - 0.005)


@contextlib.contextmanager
def flooding(pool: Pool, kind: str) -> Iterator[psutil.Process]:
    """Ann floods meanwhile, from a process of her own."""
    public, secret = pool.keys["ann"]
    if kind == "silent connections":
        arguments = ["silent", pool.tcp, "5000"]
    else:
        arguments = ["flood", kind, pool.tcp, pool.public.decode(), public.decode(), secret.decode()]
    with running(*arguments) as process:
        yield process


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[psutil.Process]:
    """A process of this module meanwhile, with what it forks."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.crowd", *arguments], cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        time.sleep(1.0)
        yield psutil.Process(process.pid)
        assert process.poll() is None, f"it has ended: {arguments}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def a_busy_pool(*, measured: bool = False) -> Iterator[tuple[Pool, zmq.Socket[bytes]]]:
    """One with the jobs of two users, and a socket of a third."""
    with a_pool("--max-jobs", "1000000", measured=measured) as pool:
        with pool.dealer("ann") as ann:
            submit_many(ann, QUEUED)
        with pool.dealer("carl") as carl:
            submit_many(carl, QUEUED, "carl's")
        with pool.dealer("bob") as bob:
            acknowledgements(bob, 50)
            yield pool, bob


def floods(rounds: int, *only: str) -> list[dict[str, Any]]:
    """The 95th percentile of one user's acknowledgements while another floods.

    Beside it that of a quiet moment, and that beside a process which takes as much of the processors as the flood.
    """
    kinds = only or (*FLOODS, "silent connections")
    quiet: list[float] = []
    during: dict[str, list[float]] = {kind: [] for kind in kinds}
    beside: dict[str, list[float]] = {kind: [] for kind in kinds}
    with a_busy_pool() as (pool, bob):
        for _ in range(rounds):
            for kind in kinds:
                time.sleep(6)  # until the one who floods may ask again
                quiet.append(p95(acknowledgements(bob, ACKS)) * 1000)
                with flooding(pool, kind) as process:
                    used, began = sum(process.cpu_times()[:2]), time.monotonic()
                    during[kind].append(p95(acknowledgements(bob, ACKS)) * 1000)
                    cores = (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - began)
                with running("burn", str(max(cores, 0.01))):
                    beside[kind].append(p95(acknowledgements(bob, ACKS)) * 1000)
                print(
                    f"   {kind}: {during[kind][-1]:.1f} ms; as much work elsewhere ({cores:.2f} cores) "
                    f"{beside[kind][-1]:.1f}, quiet {quiet[-1]:.1f}",
                    flush=True,
                )
    name = "p95 of an acknowledgement, another floods: {}"
    return [
        figure
        for kind in kinds
        for figure in (
            row(name.format(kind), "ms", during[kind], quiet, "nobody floods", "<= 2"),
            row(name.format(kind), "ms", during[kind], beside[kind], "as much work that asks nothing", "<= 2"),
        )
    ]


def longest_turns(rounds: int, *only: str) -> list[dict[str, Any]]:
    """How long, in processor time, a turn of the daemon is that another user's ask may have to wait for."""
    kinds = only or (*FLOODS, "silent connections")
    quiet: list[float] = []
    during: dict[str, list[float]] = {kind: [] for kind in kinds}
    with a_busy_pool(measured=True) as (pool, bob):
        for _ in range(rounds):
            for kind in kinds:
                time.sleep(6)
                with pool.turns() as turns:
                    acknowledgements(bob, ACKS)
                quiet.append(found_in(turns) * 1000)
                with flooding(pool, kind), pool.turns() as turns:
                    acknowledgements(bob, ACKS)
                during[kind].append(found_in(turns) * 1000)
                print(f"   {kind}: {during[kind][-1]:.2f} ms, quiet {quiet[-1]:.2f}", flush=True)
    name = "processor time of the turn that an ask may have to wait for, another floods: {}"
    return [row(name.format(kind), "ms", during[kind], quiet, "nobody floods", "") for kind in kinds]


def found_in(turns: list[float]) -> float:
    """The length of turn below which are 99 of 100 moments at which the loop is busy."""
    left = sum(turns) * 0.01
    for turn in sorted(turns, reverse=True):
        left -= turn
        if left < 0:
            return turn
    return 0.0


# --- memory, wake-ups -------------------------------------------------------------------------------------------------


def crowd_of_connections(rounds: int) -> list[dict[str, Any]]:
    """PSS, descriptors and threads a minute after 1,000 clients have come and gone ten times."""
    figures: dict[str, tuple[list[float], list[float]]] = {
        "PSS": ([], []),
        "descriptors": ([], []),
        "threads": ([], []),
    }

    def note(pool: Pool, at: int) -> None:
        daemon = psutil.Process(pool.process.pid)
        found = (pool.memory() / MiB, daemon.num_fds(), daemon.num_threads())
        for name, value in zip(figures, found, strict=True):
            figures[name][at].append(value)

    for _ in range(rounds):
        with a_pool() as pool:
            with pool.dealer() as one:
                ask(one, wire.Hello(version=wire.VERSION))
            time.sleep(5)
            note(pool, 1)
            subprocess.run(
                [sys.executable, "-m", "benchmarks.crowd", "connect", pool.unix, str(CLIENTS), str(CONNECTS)],
                cwd=Path(__file__).parents[1], stdin=subprocess.DEVNULL, check=True,
            )  # fmt: skip
            print(f"   right after: {pool.memory() / MiB:.1f} MiB", flush=True)
            time.sleep(LATER_S)
            note(pool, 0)
    return [
        row(
            f"{name} a minute after {CLIENTS * CONNECTS:,} connections",
            "MiB" if name == "PSS" else "",
            after,
            before,
            "before",
            "<= 1.05",
        )
        for name, (after, before) in figures.items()
    ]


def connect(endpoint: str, clients: int, times: int) -> None:
    """So many clients at once say Hello and leave, so many times."""
    for _ in range(times):
        with zmq.Context() as context:
            context.max_sockets = clients + 100
            sockets = []
            for _ in range(clients):
                socket = context.socket(zmq.DEALER)
                socket.linger, socket.rcvtimeo = 0, 60_000
                socket.connect(endpoint)
                socket.send(wire.encode(wire.Request(id=1, ask=wire.Hello(version=wire.VERSION))))
                sockets.append(socket)
            for socket in sockets:
                socket.recv()
            for socket in sockets:
                socket.close()


def long_queue(rounds: int) -> list[dict[str, Any]]:
    """What a queued job takes in the daemon, and the acknowledgement with 100,000 of them beside one with 100."""
    bytes_, short, long = [], [], []
    for _ in range(rounds):
        with a_pool() as pool, pool.dealer() as own, pool.dealer("bob") as bob:
            submit_many(own, 100, "first")
            acknowledgements(bob, 50)
            short.append(statistics.median(acknowledgements(bob, ACKS)) * 1000)
            time.sleep(2)
            before = pool.memory()
            submit_many(own, LONG)
            time.sleep(15)
            bytes_.append((pool.memory() - before) / LONG)
            long.append(statistics.median(acknowledgements(bob, ACKS)) * 1000)
            print(f"   {bytes_[-1]:.0f} bytes, {long[-1]:.2f} ms, with 100 jobs {short[-1]:.2f}", flush=True)
    return [
        row(f"bytes (PSS) of each of {LONG:,} queued jobs", "bytes", bytes_, [], "", "<= 1500"),
        row(f"p50 of an acknowledgement with {LONG:,} queued jobs", "ms", long, short, "with 100", "<= 1.3"),
    ]


def idle(rounds: int) -> list[dict[str, Any]]:
    """A daemon with nobody."""
    memory, cpu, wakeups = [], [], []
    for _ in range(rounds):
        with a_pool() as pool:
            time.sleep(5)
            woken, used, began = pool.wakeups(), pool.cpu_s(), time.monotonic()
            time.sleep(IDLE_S)
            passed = time.monotonic() - began
            wakeups.append((pool.wakeups() - woken) / passed)
            cpu.append((pool.cpu_s() - used) / passed * 100)
            memory.append(pool.memory() / MiB)
    return [
        row("PSS of an idle daemon", "MiB", memory, [], "", "<= 22"),
        row("an idle daemon's processor time", "% of a core", cpu, [], "", "<= 0.05"),
        row("wake-ups of an idle daemon", "a second", wakeups, [], "", "<= 2"),
    ]


PARTS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "floods": floods,
    "turns": longest_turns,
    "connections": crowd_of_connections,
    "queue": long_queue,
    "idle": idle,
}


def measure(rounds: int = 5) -> list[dict[str, Any]]:
    """All of it; a minute each has to pass, so with few rounds."""
    return [figure for part in PARTS.values() for figure in part(max(1, rounds // 2))]


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "flood":
        flood(*rest)
    elif what == "burn":
        burn(float(rest[0]))
    elif what == "silent":
        silent(rest[0], int(rest[1]))
    elif what == "connect":
        connect(rest[0], int(rest[1]), int(rest[2]))
    else:
        for entry in PARTS[what](int(rest[0]) if rest else 1, *rest[1:]):
            print(entry["name"], entry["ours"], entry["peer"], entry["ratio"], f"load {entry['load']}")
