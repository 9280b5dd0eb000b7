"""Workers on several hosts, each a hand in a process of its own with folders of its own, reached by `exec:`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process as ProcessEngine
from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.platform import processes
from tests.live.engine.bench import TORCH, Bench, asynchronous, check_training, needs
from tests.live.engine.test_torch_distributed import cell
from tests.support import slurm
from tests.support.marks import everything

EVERYTHING = os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING")
HOSTS = (HostAddress(name="b", url="exec:"), HostAddress(name="c", url="exec:"))
SAY = """
print("rank", rank, "of", world_size, "says so")
where = [os.environ[name] for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")]
if "horovod" in str(globals().get("hvd")):
    assert where == [str(of()) for of in (hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size)]
print("here", *where)
"""
ENGINES = [pytest.param(Horovod, TORCH, marks=needs("torch"), id="horovod"), pytest.param(Torch, cell(), id="torch")]


def make(folder: Path, engine: Any = Torch, source: str = "", **more: Any) -> Bench:
    return Bench(engine, folder, (source or cell()) + SAY, out=("steps", "weights"), hosts=HOSTS, **more)


async def complete(bench: Bench) -> None:
    bench.finish()
    assert (await bench.ended()).outcome == "completed", bench.story()
    check_training(bench)


def left(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern))


def hand_of(bench: Bench, name: str) -> processes.ProcessId:
    """The hand's process on that host."""
    return processes.identify(bench.engine.attempt.hosts.remote(f"{name}:0").hello.pid)


def pids(bench: Bench, rank: int) -> set[int]:
    """The worker processes that have trained as this rank."""
    return {step["pid"] for step in bench.steps() if step.get("rank") == rank}


@pytest.mark.parametrize(("engine", "source"), ENGINES if EVERYTHING else ENGINES[:1])  # torch's: test_other_hosts
@asynchronous
async def test_job_grows_over_three_hosts_shrinks_and_ends(folder: Path, engine: Any, source: str) -> None:
    async with make(folder, engine, source) as bench:
        await bench.launch("a:0")
        await bench.step_at(1)
        for slots in (("a:0", "b:0"), ("a:0", "b:0", "c:0")):
            await bench.rescale(*slots)
            assert set((await bench.running()).slots) == set(slots)
            await bench.step_at(len(slots), time.time())
        await bench.until(lambda: len(bench.engine.remote_usage().workers) == 2)
        assert all(memory > 10_000_000 for _, memory in bench.engine.remote_usage().workers)
        await bench.rescale("b:0", "c:0")  # without the host that the driver is on, which had rank 0
        await bench.running()
        await bench.step_at(2, time.time())
        assert "a:0" in await bench.until(lambda: bench.released)
        await complete(bench)
        assert sorted(bench.results()) == [0, 1]
        for rank in (0, 1):
            assert f"rank {rank} of 2 says so\nhere 0 1 {rank} 2" in bench.text(rank)
        assert not left(folder, "newcomer.*")


@pytest.mark.skipif(not EVERYTHING and not slurm.why_not(), reason="test_ssh and test_slurm show it between machines")
@asynchronous
async def test_worker_or_hand_on_another_host_is_killed(folder: Path) -> None:
    async with make(folder) as bench:
        await bench.launch("a:0", "b:0", "c:0")
        await bench.step_at(3)
        bench.kill(2)
        [death] = await bench.until(lambda: bench.of("DeathReported"))
        await bench.step_at(3, time.time())
        assert (death.rank, death.cause) == (2, "was killed by SIGKILL")
        worker_host, (worker, *_) = hand_of(bench, "b"), await bench.until(lambda: pids(bench, 1))
        before = len(bench.steps())
        processes.send(worker_host, signal.SIGKILL)
        await bench.until(lambda: any(step["size"] == 2 for step in bench.steps()[before:]))  # without that host
        await bench.until(lambda: not psutil.pid_exists(worker))
        assert bench.of("DeathReported")[-1].cause == "was lost with host b: its host agent has ended"
        await bench.step_at(3, time.time())  # it is back
        assert not bench.released
        processes.send(hand_of(bench, "b"), signal.SIGKILL)
        await bench.step_at(2, time.time())
        await bench.rescale("a:0", "c:0")  # as the daemon has it when a host fails
        await bench.until(lambda: bench.released)
        await bench.until(lambda: not bench.engine.attempt.hosts.lost(["b:0"]))
        await bench.rescale("a:0", "b:0", "c:0")
        await bench.step_at(3, time.time())
        await complete(bench)


@everything
@asynchronous
async def test_cell_that_cannot_regroup_is_lost_with_its_host_and_has_not_failed(folder: Path) -> None:
    """So the daemon queues it again."""
    source = "open(f'{FOLDER}/begun.{rank}', 'w'); import time; time.sleep(600)"
    async with Bench(ProcessEngine, folder, source, hosts=HOSTS, min_slots=2) as bench:
        await bench.launch("b:0", "c:0")
        await bench.until(lambda: len(left(folder, "begun.*")) == 2)
        processes.send(hand_of(bench, "b"), signal.SIGKILL)
        found = await bench.ended()
        assert (found.outcome, found.reason) == ("lost", "host b was lost: its host agent has ended")


@asynchronous
async def test_stopped_hand_is_lost_and_killed_with_its_workers(folder: Path) -> None:
    """A hand that can't keep time, as on a host that hangs: the kernel does."""
    async with make(folder) as bench:
        await bench.launch("a:0", "b:0")
        await bench.step_at(2)
        worker_host, (worker, *_) = hand_of(bench, "b"), await bench.until(lambda: pids(bench, 1))
        before = len(bench.steps())
        processes.send(worker_host, signal.SIGSTOP)
        stopped = time.monotonic()
        await bench.until(lambda: not psutil.pid_exists(worker) and not processes.alive(*worker_host))
        print(f"killed after {time.monotonic() - stopped:.2f} s")  # noqa: T201
        await bench.until(lambda: any(step["size"] == 1 for step in bench.steps()[before:]))
        print(f"next step after {time.monotonic() - stopped:.2f} s")  # noqa: T201
        await bench.step_at(2, time.time())
        await complete(bench)


@pytest.mark.parametrize(("engine", "source"), ENGINES if EVERYTHING else ENGINES[1:])
@asynchronous
async def test_all_die_and_the_commit_of_another_host_is_taken_up(folder: Path, engine: Any, source: str) -> None:
    async with make(folder, engine, source) as bench:
        await bench.launch("b:0", "c:0")
        await bench.until(lambda: (bench.steps() or [{"step": 0}])[-1]["step"] > 20)
        for rank in (0, 1):
            bench.kill(rank)
        await bench.until(lambda: len(bench.of("DeathReported")) == 2)
        before = bench.steps()
        await bench.step_at(2, time.time())
        assert before[-1]["step"] - 10 <= bench.steps()[len(before)]["step"]
        await bench.engine.stop("preempt")
        assert (await bench.ended()).outcome == "preempted", bench.story()
        assert left(folder, "commit/commit")
    async with make(folder, engine, source, attempt=2) as bench:  # which begins with the commit that was brought
        reached = max(step["step"] for step in bench.steps())
        await bench.launch("c:0")
        again = await bench.step_at(1, time.time())
        assert again["step"] >= reached - 10
        await complete(bench)
