"""A pool with the nodes of an allocation of Slurm's, run in namespaces by a test; prints what it found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from jupyter_elastic.protocol.wire import SwitchPolicy
from tests.live.agent.test_other_hosts import SAY, check_complete, elastic, hosts, run_in_folder, steps
from tests.live.engine.test_torch_distributed import cell
from tests.support.machines import HOME, SOURCE, Machines
from tests.support.pool import Pool
from tests.support.slurm import Cluster, answer

CELLS = {"torch": cell(step="time.sleep(0.02)")}
FOLDER = HOME / "pool"
JOB_FOLDER = HOME / "job"

times: dict[str, float] = {}
said: dict[str, str] = {}


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    times[name] = round(time.monotonic() - began, 3)
    sys.stderr.write(f"{name}: {times[name]} s\n")


def commands() -> list[list[str]]:
    """Those of the section on Slurm in the docs that are about an allocation which is there."""
    section = (SOURCE / "docs" / "hosts.md").read_text().partition("## Slurm\n")[2].partition("\n## ")[0]
    return [line.split() for line in section.splitlines() if line.startswith("    ")][:5]


def ours(number: int) -> list[int]:
    """The processes of this package's on a node."""
    found = []
    for pid in Machines.pids(number):
        with contextlib.suppress(OSError):
            if b"jupyter_elastic" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def srun_stopped(stepped: Callable[[int], None]) -> None:
    """The command that leads to a node is stopped: the node is silent, and is reached by another one."""
    for process in psutil.process_iter(["cmdline"]):
        if {"srun", "--nodelist=h2"} <= set(process.info["cmdline"] or ()):
            process.send_signal(signal.SIGSTOP)
    with timed("srun stopped to the next step"):
        stepped(2)
    with timed("a new srun there, cold"):
        stepped(3)


def refusals(allocation: str) -> None:
    """What is said where hosts can't be had."""
    said["in no allocation"] = elastic("host", "add", "slurm:", code=1)
    said["none known"] = elastic("host", "add", "slurm:4711", code=1)
    said["no number"] = elastic("host", "add", "slurm:x", code=1)
    said["no node of it"] = elastic("host", "add", "h9", f"slurm://{allocation}/h9", code=1)
    path, os.environ["PATH"] = os.environ["PATH"], "/usr/bin:/bin"
    said["no Slurm"] = elastic("host", "add", f"slurm:{allocation}", code=1)
    said["no srun"] = elastic("host", "add", "h1", f"slurm://{allocation}/h1", code=1)
    os.environ["PATH"] = path


def added(pool: Pool) -> str:
    """Do what the docs say, up to the list of hosts; the number of the allocation."""
    allocate, add, show, cancel, remove = commands()
    assert cancel == ["scancel", add[-1].removeprefix("slurm:")]
    assert remove == ["jupyter", "elastic", "host", "remove", add[-1]]
    done = subprocess.run(allocate, capture_output=True, text=True, check=True)
    allocation = done.stderr.split()[-1]
    refusals(allocation)
    with timed("two nodes added"):
        said["added"] = elastic(*add[2:-1], f"slurm:{allocation}")
    pool.until(lambda: [host["slots"] for host in hosts()] == [{"free": 1}] * 3, "the nodes are seen")
    said["list"] = elastic(*show[2:])
    return allocation


def story(pool: Pool, engine: str, *, everything: bool) -> None:
    """Begin here, grow over two nodes, lose one's processes and then the allocation; come to the end."""

    def stepped(size: int) -> None:
        after = time.time()

        def made() -> bool:
            return any(step["size"] == size and step["at"] > after for step in steps(JOB_FOLDER)[-5:])

        pool.until(made, f"a step of {size} workers", 180)

    allocation = added(pool)
    if everything:
        run_in_folder(pool, HOME / "lab")
    names = {"FOLDER": str(JOB_FOLDER)}
    job = pool.submit(CELLS[engine] + SAY, engine=engine, names=names, out=("steps", "weights"))
    stepped(1)
    if everything:
        elastic("resize", str(job), "1:2")
        with timed("1 to 2 hosts, cold"):
            stepped(2)
    elastic("resize", str(job), "1:3")
    with timed("to 3 hosts, cold"):
        stepped(3)
    elastic("host", "drain", "h2", "--reason", "a new fan")
    stepped(2)
    pool.until(lambda: hosts()[2]["slots"] == {"out": 1}, "the node is empty")
    said["drained"] = hosts()[2]["out"]
    elastic("host", "undrain", "h2")
    with timed("2 to 3 hosts"):
        stepped(3)
    before = ours(2)
    for pid in before:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with timed("all on a node killed to the next step"):
        stepped(2)
    with timed("a new hand and worker there, cold"):
        stepped(3)
    if everything:
        srun_stopped(stepped)
    answer("scancel", allocation)
    with timed("allocation cancelled to the next step"):
        stepped(1)
    pool.until(lambda: not ours(1) + ours(2), "nothing is left on the nodes")
    pool.until(lambda: [host["slots"] for host in hosts()[1:]] == [{"out": 1}] * 2, "they are out")
    said["node of one that has ended"] = elastic("host", "add", "h1", f"slurm://{allocation}/h1", code=1)
    (JOB_FOLDER / "stop").touch()
    assert pool.ended(job).outcome == "completed"
    check_complete(pool, job, JOB_FOLDER, {0})
    assert "rank 0 of 1 says so" in pool.output(job, 0)
    pool.no_slot_is_leased_twice()
    said["ended"] = elastic("host", "add", f"slurm:{allocation}", code=1)
    said["removed"] = elastic("host", "remove", f"slurm:{allocation}")
    pool.until(lambda: len(hosts()) == 1, "they are no hosts of the pool any more")


def main() -> None:
    engine, *everything = sys.argv[1:]
    with timed("cluster up"):
        Cluster(2)
    JOB_FOLDER.mkdir()
    try:
        os.environ["JUPYTER_ELASTIC_DIR"] = str(FOLDER)  # Slurm's own processes are not of this pool
        with Pool(FOLDER, slots=1) as pool:
            pool.client.ask(SwitchPolicy(name="elastic_fifo", options={"cooldown": 0.0, "payback": 0.0}))
            story(pool, engine, everything=bool(everything))
    finally:
        sys.stdout.write(json.dumps({"times": times, "said": said}) + "\n")


if __name__ == "__main__":
    main()
