"""A job over machines that are reached by SSH, run in namespaces by `tests.support.machines`; prints what it found."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.hostfiles.host_providers import parse
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts.connection.handshake import WorkerSetting
from jupyter_elastic.hosts.connection.host_connection import HostConnection
from jupyter_elastic.types.errors import ElasticError
from tests.live.engine import torch_cells
from tests.live.engine.bench import TORCH, Bench, check_training
from tests.live.engine.test_torch_distributed import cell
from tests.support.machines import HOME, Machines

SAY = '\nprint("rank", rank, "of", world_size, "says so")\n'
HOSTS = tuple(HostAddress(name=f"h{number}", url=f"ssh://h{number}") for number in (1, 2))
CELLS: dict[str, tuple[Any, str]] = {"torch": (Torch, cell()), "horovod": (Horovod, TORCH)}

times: dict[str, float] = {}


@contextlib.contextmanager
def timed(name: str) -> Any:
    began = time.monotonic()
    yield
    times[name] = round(time.monotonic() - began, 3)


def bench(folder: Path, engine: str, **more: Any) -> Bench:
    kind, source = CELLS[engine]
    return Bench(kind, folder, source + SAY, out=("steps", "weights"), hosts=HOSTS, **more)


async def visit(host: HostAddress) -> str:
    """What is said of a host; empty: it can be used."""
    worker_host = HostConnection(parse(host), WorkerSetting.to_visit(sys.executable), lambda _: None)
    try:
        await worker_host.visit()
    except ElasticError as problem:
        return str(problem)
    finally:
        await worker_host.close_and_wait()
    return ""


async def refusals(machines: Machines) -> dict[str, str]:
    """What is said where a host can't be used, one reason after the other."""
    said = {}
    h1 = HOSTS[0]
    said["works"] = await visit(h1)
    (HOME / ".bashrc").write_text("echo Welcome to the lab, the printer is broken\n")
    said["chatty shell"] = await visit(h1)
    (HOME / ".bashrc").unlink()
    said["no Python"] = await visit(HostAddress(name="h1", url="ssh://h1", python="/opt/none/bin/python"))
    other = HOME / "python"
    other.write_text(
        f"#!{sys.executable}\nfrom jupyter_elastic.platform import version\nversion.__version__ = '0.0.7'\n"
        "import runpy; runpy.run_module('jupyter_elastic.host_agent', run_name='__main__')\n"
    )
    other.chmod(0o755)
    said["another version"] = await visit(HostAddress(name="h1", url="ssh://h1", python=str(other)))
    # The connection to h1 that ssh keeps asks for no key any more: there is none to h2 yet.
    said["wrong user"] = await visit(HostAddress(name="h1", url="ssh://nobody@h1"))
    machines.know_hosts(range(1, 3), key="other")
    said["changed key"] = await visit(HOSTS[1])
    machines.know_hosts(range(0))
    said["unknown key"] = await visit(HOSTS[1])
    machines.know_hosts(range(1, 3))
    return said


def workers_of(job: Bench, host: str) -> set[int]:
    """The processes on that machine that have trained in this job."""
    there = set(Machines.pids(int(host[1:])))
    return {step["pid"] for step in job.steps()} & there


async def story(machines: Machines, folder: Path, engine: str, *, everything: bool) -> None:
    """Begin on two machines, lose a worker, the way between them, and then a cable; come to the end."""
    async with bench(folder, engine) as job:
        with timed("cold submit to a step of two hosts"):
            await job.launch("h1:0", "h2:0")
            await job.until(job.steps, 180)  # PyTorch is imported on each
            await job.step_at(2)
        began = time.time()
        with timed("worker killed to the next step"):
            job.kill(1)
            await job.step_at(1, began)
        await job.step_at(2, time.time())
        before = await job.until(lambda: workers_of(job, "h2"))
        began, cut = time.time(), time.monotonic()
        machines.unreachable(1, other=2)
        await job.step_at(1, began)
        times["way between hosts cut to the next step"] = round(time.monotonic() - cut, 3)
        await job.until(lambda: not before & set(Machines.pids(2)))
        if everything:
            machines.reachable(1, other=2)
            with timed("way open to a step of two hosts"):
                await job.step_at(2, time.time())
            before = await job.until(lambda: workers_of(job, "h2"))
            began, cut = time.time(), time.monotonic()
            machines.cut(2)
            await job.step_at(1, began + 1)
            times["cable cut to the next step"] = round(time.monotonic() - cut, 3)
            await job.until(lambda: not before & set(Machines.pids(2)))
            machines.mend(2)
            with timed("cable in again to a step of two hosts"):
                await job.step_at(2, time.time())
            await job.rescale("a:0", "h1:0", "h2:0")
            await job.step_at(3, time.time())
            await job.rescale("h1:0")
            await job.running()
        job.finish()
        assert (await job.ended()).outcome == "completed", job.story()
        check_training(job)
        assert sorted(job.results()) == [0]
        assert "rank 0 of 1 says so" in job.text(0)
        causes = [death.cause for death in job.of("DeathReported")]
        assert causes[0] == "was killed by SIGKILL", causes
        assert causes[1].startswith("was lost with host h2: h"), causes
        assert "can't be reached from h" in causes[1], causes
        assert causes[2:] == ["was lost with host h2: silent for 5 s"] * everything, causes


async def group_of_the_cells_own(folder: Path) -> None:
    """Rank 0, to whose store the others come, is on another machine than the driver."""
    async with Bench(Torch, folder, torch_cells.DDP, out=("size", "weights"), hosts=HOSTS) as job:
        await job.launch("h1:0", "a:0", "h2:0")
        assert (await job.ended()).outcome == "completed", job.story()
        found = job.results()
        assert found[0]["size"] == 3
        assert found[0] == found[1] == found[2]


async def main() -> None:
    engine, *everything = sys.argv[1:]
    machines = Machines(2)
    said = await refusals(machines)
    try:
        await story(machines, HOME / "job", engine, everything=bool(everything))
        if not everything:
            machines.reachable(1, other=2)
        await group_of_the_cells_own(HOME / "own")
    finally:
        sys.stdout.write(json.dumps({"times": times, "said": said}) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
