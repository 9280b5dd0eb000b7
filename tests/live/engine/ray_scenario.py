"""A job over the nodes of a Ray cluster, run in namespaces by `tests.support.machines`; prints what it found."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from jupyter_elastic_ray.provider import bridge

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.hostfiles.host_providers import parse
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts.connection.handshake import WorkerSetting
from jupyter_elastic.hosts.connection.host_connection import HostConnection
from jupyter_elastic.types.errors import ElasticError
from tests.live.engine.bench import TORCH, Bench, check_training
from tests.live.engine.test_torch_distributed import cell
from tests.support import ray_node
from tests.support.machines import HOME, Machines, address, command

SAY = '\nprint("rank", rank, "of", world_size, "says so")\n'
CLUSTER = f"{address(0)}:6379"
PATIENCE_S = 240.0
CELLS: dict[str, tuple[Any, str]] = {"torch": (Torch, cell()), "horovod": (Horovod, TORCH)}

times: dict[str, float] = {}


@contextlib.contextmanager
def timed(name: str) -> Any:
    began = time.monotonic()
    yield
    times[name] = round(time.monotonic() - began, 3)


def host(number: int, **more: Any) -> HostAddress:
    return HostAddress(name=f"h{number}", url=f"ray://{CLUSTER}/{address(number)}", **more)


class Bare(Machines):
    """Machines with nothing on them."""

    def _server(self, number: int) -> str:
        return "true"


class Cluster:
    """A Ray cluster whose head, with nothing to give away, is on this machine, and a node with a CPU on each other."""

    def __init__(self, machines: Machines, count: int) -> None:
        self.machines = machines
        os.environ["RAY_TMPDIR"] = "/tmp"  # each machine has an own one there
        Path("/tmp/ray").mkdir(exist_ok=True)
        command("mount", "-t", "tmpfs", "none", "/tmp/ray")
        command(sys.executable, ray_node.__file__, address(0), "0")
        for number in range(1, count + 1):
            self.add(number)

    def add(self, number: int) -> None:
        """Start a node on this machine."""
        node = shlex.join([sys.executable, ray_node.__file__, address(number), "1", CLUSTER])
        self.machines.run(
            number, f"mount -t tmpfs none /tmp/ray; exec {node}", JUPYTER_ELASTIC_DIR=f"/run/pool-{number}"
        )

    @staticmethod
    def nodes() -> list[Any]:
        """The living ones; none while Ray does not answer."""
        listed = subprocess.run(bridge(CLUSTER), stdout=subprocess.PIPE, text=True, check=False)
        return json.loads(listed.stdout) if listed.returncode == 0 else []


def raylet(number: int) -> psutil.Process:
    """Ray's own process on a machine."""
    there = [psutil.Process(pid) for pid in Machines.pids(number)]
    return next(process for process in there if process.name() == "raylet")


async def visit(there: HostAddress) -> str:
    """What is said of a host; empty: it can be used."""
    worker_host = HostConnection(parse(there), WorkerSetting.to_visit(sys.executable), lambda _: None)
    try:
        await worker_host.visit()
    except ElasticError as problem:
        return str(problem)
    finally:
        await worker_host.close_and_wait()
    return ""


async def refusals() -> dict[str, str]:
    """What is said where a host can't be used, one reason after the other."""
    said = {}
    with timed("visit"):
        said["works"] = await visit(host(1))
    said["no Python"] = await visit(host(1, python="/opt/none/bin/python"))
    said["too much"] = await visit(host(1, slots=2))
    said["no node"] = await visit(host(7))
    said["no cluster"] = await visit(HostAddress(name="h1", url=f"ray://{address(1)}:6379/{address(1)}"))
    return said


def workers_of(job: Bench, number: int) -> set[int]:
    """The processes on that machine that have trained in this job."""
    there = set(Machines.pids(number))
    return {step["pid"] for step in job.steps()} & there


async def step_at(job: Bench, size: int, after: float) -> None:
    """Wait for a step of so many workers, made after `after`; on a new node Ray and PyTorch are imported first."""
    await job.until(lambda: any(step["size"] == size and step["at"] > after for step in job.steps()), PATIENCE_S)


async def story(cluster: Cluster, folder: Path, engine: str) -> None:
    """Grow over two nodes and this machine, lose a worker, a cable, and Ray on a node; come to the end."""
    kind, source = CELLS[engine]
    hosts = (host(1), host(2))
    async with Bench(kind, folder, source + SAY, out=("steps", "weights"), hosts=hosts) as job:
        with timed("cold submit to a step on a node"):
            await job.launch("h1:0")
            await job.until(job.steps, PATIENCE_S)
        with timed("1 to 2 hosts, cold"):
            await job.rescale("h1:0", "h2:0")
            await step_at(job, 2, time.time())
        with timed("2 to 3 hosts"):
            await job.rescale("h1:0", "h2:0", "a:0")
            await step_at(job, 3, time.time())
        with timed("3 to 2 hosts"):
            await job.rescale("h1:0", "h2:0")
            await step_at(job, 2, time.time())
        await faults(cluster.machines, job)
        await job.rescale("h1:0", "a:0")
        await step_at(job, 2, time.time())
        await job.running()
        job.finish()
        assert (await job.ended()).outcome == "completed", job.story()
        check_training(job)
        assert sorted(job.results()) == [0, 1]
        for rank in (0, 1):
            assert f"rank {rank} of 2 says so" in job.text(rank)
        causes = [death.cause for death in job.of("DeathReported")]
        assert "was killed by SIGKILL" in causes, causes
        assert "was lost with host h2: silent for 5 s" in causes, causes
        assert all(cause.startswith("was lost with host ") for cause in causes if "SIGKILL" not in cause), causes


async def faults(machines: Machines, job: Bench) -> None:
    """A job of two nodes loses a worker, a cable, and then Ray on a node."""
    with timed("worker killed to the next step"):
        began = time.time()
        job.kill(1)
        await step_at(job, 1, began)
    with timed("and to a step of two nodes"):
        await step_at(job, 2, time.time())
    before = await job.until(lambda: workers_of(job, 2))
    with timed("cable cut to the next step"):
        began = time.time()
        machines.cut(2)
        await step_at(job, 1, began + 1)
    await job.until(lambda: not before & set(Machines.pids(2)))
    times["cable cut to its workers' end over there, at most"] = round(time.time() - began, 3)
    machines.mend(2)
    with timed("cable in again to a step of two nodes"):
        await step_at(job, 2, time.time())
    before = await job.until(lambda: workers_of(job, 2))
    began = time.time()
    with timed("Ray killed on a node to a step without it"):  # until then its workers train on
        raylet(2).kill()
        await step_at(job, 1, began)
    await job.until(lambda: not before & set(Machines.pids(2)))
    times["longest pause"] = round(longest_pause(job, began), 3)


def longest_pause(job: Bench, after: float) -> float:
    """Seconds between two steps of the job."""
    at = sorted(step["at"] for step in job.steps() if step["at"] > after)
    return max(later - one for one, later in itertools.pairwise(at))


async def main() -> None:
    engine, *_ = sys.argv[1:]
    machines = Bare(2)
    with timed("cluster"):
        cluster = Cluster(machines, 2)
    said = await refusals()
    try:
        await story(cluster, HOME / "job", engine)
    finally:
        sys.stdout.write(json.dumps({"times": times, "said": said, "nodes": cluster.nodes()}) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
