"""Faults of machines that are reached by SSH, run in namespaces by `tests.support.machines`; prints what was said."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

import psutil

from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.hostfiles.host_providers import parse
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.platform import paths
from tests.live.engine.bench import Bench, check_training
from tests.live.engine.ssh_scenario import CELLS, HOSTS, SAY, timed, times, workers_of
from tests.live.engine.test_torch_distributed import cell
from tests.support.machines import DATA_NETWORK, HOME, Machines
from tests.support.other_user import interpreter

RUNTIME = "/tmp/jupyter-elastic-0"
FULL = f"{RUNTIME}/full"
OTHER_USER = """
import json, os, pathlib, signal, socket, sys
found = []
def tried(what, work):
    try:
        found.append([what, repr(work())])
    except OSError as problem:
        found.append([what, problem.strerror or str(problem)])
for folder in (sys.argv[1], "/dev/shm"):
    for path in [folder, *map(str, pathlib.Path(folder).glob("*"))]:
        tried("list", lambda: os.listdir(path)) if path != "/dev/shm" else None
for pid in map(int, sys.argv[2:]):
    tried("environment", lambda: open(f"/proc/{pid}/environ").read(10))
    tried("kill", lambda: os.kill(pid, signal.SIGTERM))
ports = [line.split()[1].split(":") for line in open("/proc/net/tcp").readlines()[1:] if line.split()[3] == "0A"]
for port in (int(port, 16) for address, port in ports if address == "0100007F"):
    with socket.create_connection(("127.0.0.1", port), 5) as store:
        store.sendall(b"GET /rank_and_size/w0:0 HTTP/1.0\\r\\n\\r\\n")
        store.settimeout(5)
        tried("store", lambda: store.recv(1000))
print(json.dumps(found))
"""


class Faults:
    """One job after the other over h1 and h2, each with a fault of h2 from which it comes back."""

    def __init__(self, machines: Machines, engine: str) -> None:
        self.machines, self.engine = machines, engine
        self.said: dict[str, str] = {}

    def bench(self, name: str, hosts: tuple[HostAddress, ...] = HOSTS) -> Bench:
        kind, source = CELLS[self.engine]
        return Bench(kind, HOME / name.replace(" ", "-"), source + SAY, out=("steps", "weights"), hosts=hosts)

    async def lost(self, name: str, cause: Callable[[], None], mend: Callable[[], None], **more: tuple[HostAddress, ...]
                   ) -> None:  # fmt: skip
        """A job loses h2 by a fault, goes on, and has it again."""
        async with self.bench(name, **more) as job:
            await job.launch("h1:0", "h2:0")
            await job.until(job.steps, 180)
            await job.step_at(2)
            before = await job.until(lambda: workers_of(job, "h2"))
            began = time.time()
            cause()
            with timed(f"{name}: to a step without it"):
                await job.step_at(1, began)
            with timed(f"{name}: to its workers' end over there"):
                await job.until(lambda: not before & set(Machines.pids(2)))
            self.said[name] = job.of("DeathReported")[-1].cause
            mend()
            with timed(f"{name}: to a step of two again"):
                await job.step_at(2, time.time())
            await ended(job)

    async def refused(self, name: str, reason: Callable[[Bench], str]) -> None:
        """A job begins without h2."""
        async with self.bench(name) as job:
            await job.launch("h1:0", "h2:0")
            with timed(f"{name}: submit to a step without it"):
                await job.until(lambda: reason(job), 60)
                await job.step_at(1, time.time())
            self.said[name] = reason(job)
            await job.rescale("h1:0")
            await ended(job)

    async def begins(self, name: str) -> None:
        """A job begins on both all the same."""
        async with self.bench(name) as job:
            with timed(f"{name}: submit to a step of two"):
                await job.launch("h1:0", "h2:0")
                await job.until(lambda: any(step["size"] == 2 for step in job.steps()), 120)
            await ended(job)

    async def fills_the_disk(self) -> None:
        """What a cell prints there fills the disk: the job fails and says so, as it does here."""
        async with Bench(Torch, HOME / "prints", cell(step="print('x' * 10_000)"), hosts=HOSTS) as job:
            await job.launch("h2:0")
            found = await job.ended()
            assert found.outcome == "failed", job.story()
            self.said["prints"] = found.reason

    async def second_user(self) -> None:
        """Another user of h2 finds nothing open while a job trains there."""
        async with self.bench("second user") as job:
            await job.launch("h1:0", "h2:0")
            await job.step_at(2, time.time())
            workers = await job.until(lambda: workers_of(job, "h2"))
            worker_host = next(pid for pid in named(2, "elastic-host"))
            code = [interpreter(), "-I", "-c", OTHER_USER, RUNTIME, *map(str, [worker_host, *workers])]
            found = json.loads(inside(2, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *code))
            assert {answer for what, answer in found if what in {"list", "environment"}} == {"Permission denied"}, found
            assert {answer for what, answer in found if what == "kill"} == {"Operation not permitted"}, found
            assert {answer for what, answer in found if what == "store"} <= {"b''", "Connection reset by peer"}, found
            self.said["second user"] = " ".join(sorted({what for what, _ in found}))
            await ended(job)


async def ended(job: Bench) -> None:
    job.finish()
    assert (await job.ended()).outcome == "completed", job.story()
    check_training(job)


def inside(number: int, *command: str) -> str:
    """Run a command on a machine, with what is mounted there; what it prints."""
    sshd = next(pid for pid in Machines.pids(number) if "sshd" in psutil.Process(pid).name())
    return subprocess.run(
        ["nsenter", f"--target={sshd}", "--net", "--mount", "--uts", "--", *command],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def named(number: int, name: str) -> list[int]:
    """The processes on a machine that are called so."""
    return [pid for pid in Machines.pids(number) if psutil.Process(pid).name() == name]


def commands(word: str, pids: Iterable[int]) -> list[int]:
    """Those of the processes whose command has this word."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(word in part for part in psutil.Process(pid).cmdline()):
                found.append(pid)
    return found


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


async def story(faults: Faults, machines: Machines) -> None:
    for number in (1, 2):
        inside(number, "hostname", "lab")  # two hosts of one name
    await faults.begins("both are called lab")

    await faults.second_user()

    inside(2, "sh", "-c", f"mount -o remount,size=8m {RUNTIME}; cat /dev/zero > {FULL} || true")
    await faults.refused("full disk", lambda job: job.engine.hosts.why_lost("h2:0"))
    inside(2, "rm", FULL)
    await faults.fills_the_disk()
    await faults.begins("disk has room again")

    [kept] = parse(HOSTS[1]).command([], paths.runtime_dir()).argv[-4].split("=")[1:]
    stopped = commands(f"{kept} [mux]", psutil.pids())  # ssh's own connection, which all hands there share
    assert stopped
    await faults.lost("ssh stopped", lambda: send(signal.SIGSTOP, stopped), lambda: None)
    send(signal.SIGKILL, stopped)

    def sessions() -> list[int]:  # of sshd there
        return commands("@notty", Machines.pids(2))

    assert sessions()
    await faults.lost("sshd stopped", lambda: send(signal.SIGSTOP, sessions()), lambda: None)
    send(signal.SIGKILL, sessions())

    parents = commands("forked_worker", Machines.pids(2))
    assert parents
    send(signal.SIGSTOP, parents)
    await faults.begins("warm parents stopped")
    send(signal.SIGKILL, parents)

    with_data = tuple(HostAddress(name=host.name, url=host.url, network=DATA_NETWORK) for host in HOSTS)
    await faults.lost("control path cut", lambda: machines.cut(2), lambda: machines.mend(2), hosts=with_data)


async def main() -> None:
    [engine] = sys.argv[1:]
    machines = Machines(2)
    machines.add_data_network()
    faults = Faults(machines, engine)
    try:
        await story(faults, machines)
    finally:
        sys.stdout.write(json.dumps({"times": times, "said": faults.said}) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
