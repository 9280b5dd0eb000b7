"""What one group leaves behind when the next one forms: nothing, however it ended.

200 generations with JUPYTER_ELASTIC_TEST_EVERYTHING, 12 without.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jupyter_elastic.driver.engine import Engine
from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from tests.live.engine.bench import Bench, asynchronous, needs
from tests.live.engine.test_torch_distributed import cell

EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))
ENGINES = [Torch, pytest.param(Horovod, marks=needs("torch"))]
# So that what the test reads stays short: a note of the first step at a size, and of some later ones.
SELDOM = """
each_step, noted = note, [0, 0]
def note(**step):
    if step["size"] != noted[0] or time.time() - noted[1] > 0.05:
        noted[:] = step["size"], time.time()
        each_step(**step)
"""


class Held(NamedTuple):
    """What a process holds; memory is its own, in MiB: pages of libraries come in at their first use."""

    descriptors: int
    threads: int
    memory: float


def held(pid: int) -> Held:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    memory = int(status["RssAnon"].split()[0]) / 1024
    return Held(len(list(Path(f"/proc/{pid}/fd").iterdir())), int(status["Threads"]), memory)


def names(pid: int) -> list[str]:
    """The process's open files, and its threads."""
    files = (str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir())
    return sorted(files) + sorted(file.read_text().strip() for file in Path(f"/proc/{pid}/task").glob("*/comm"))


def make(engine: type[Engine], folder: Path, before: str = "") -> Bench:
    return Bench(engine, folder, cell(before=SELDOM + before), out=("steps", "weights"))


async def grow(bench: Bench) -> dict[str, Any]:
    begun = time.time()
    await bench.rescale("h:0", "h:1")
    return await stepped_as_rank_1(bench, begun)


async def shrink(bench: Bench) -> dict[str, Any]:
    begun = time.time()
    await bench.rescale("h:0")
    return await bench.step_at(1, begun)


async def stepped_as_rank_1(bench: Bench, after: float, but: int = 0) -> dict[str, Any]:
    """Wait for a step of another process than `but` in the second place."""
    return await bench.until(
        lambda: next((s for s in bench.steps() if s["rank"] == 1 and s["at"] > after and s["pid"] != but), None)
    )


async def comes_back(bench: Bench, pid: int, before: Held, more: int = 0) -> None:
    """Wait until the process holds no more descriptors and threads than `before`: the last group's may still end."""

    def back() -> bool:
        now = held(pid)
        return now.descriptors <= before.descriptors + more and now.threads <= before.threads + more

    try:
        await bench.until(back)
    except AssertionError as problem:
        problem.add_note(f"{held(pid)} instead of {before}: {names(pid)}")
        raise


@pytest.mark.parametrize("engine", ENGINES)
@asynchronous
async def test_a_group_that_broke_is_gone_at_once(engine: type[Engine], folder: Path) -> None:
    """Not only when Python looks for cycles: a broken group has threads, and each of the next ones would too."""
    async with make(engine, folder, before="gc.disable()") as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await grow(bench)
        pid = (await shrink(bench))["pid"]
        before = held(pid)
        for _ in range(3):
            victim = (await grow(bench))["pid"]
            killed = time.time()
            bench.kill(1)
            await stepped_as_rank_1(bench, killed, but=victim)
            assert (await shrink(bench))["pid"] == pid
        await comes_back(bench, pid, before)
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.timeout(600)
@asynchronous
async def test_generation_after_generation_leaves_nothing_open(engine: type[Engine], folder: Path) -> None:
    """Of the member that stays and of the driver: descriptors, threads, memory."""
    async with make(engine, folder) as bench:
        await bench.launch("h:0")
        pid = (await bench.step_at(1))["pid"]
        before: dict[int, Held] = {}
        for number in range(100 if EVERYTHING else 6):
            victim = (await grow(bench))["pid"]
            if number % 3 == 2:
                killed = time.time()
                bench.kill(1)
                await stepped_as_rank_1(bench, killed, but=victim)
            assert (await shrink(bench))["pid"] == pid
            before = before or {process: held(process) for process in (pid, os.getpid())}
        for process, first in before.items():
            await comes_back(bench, process, first, more=2)  # what is open but once may have come later
            assert held(process).memory - first.memory < 5, (first, held(process))
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()
