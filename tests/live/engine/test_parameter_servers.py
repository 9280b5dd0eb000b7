"""Engine `tensorflow_ps`: a training with parameter servers grows, shrinks, dies and counts every step once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.engines.tensorflow_ps.driver import TensorflowPs
from jupyter_elastic.forkserver import workers
from jupyter_elastic.platform import processes
from jupyter_elastic.testing.engines import ENGINE_CHECKS, check_engine
from tests.live.engine.bench import Bench, asynchronous
from tests.live.engine.ps_cells import COUNTED

minutes = pytest.mark.skipif(
    not os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"), reason="minutes; set JUPYTER_ELASTIC_TEST_EVERYTHING"
)
LONG_S = 240.0
STEPS = 20
"""Of an epoch of the cell."""
PLACES = {"chief": 0, "worker": 1, "server": -1}


class ClusterBench(Bench):
    """An attempt of which the last slots are servers'."""

    def __init__(self, folder: Path, source: str = COUNTED, **more: Any) -> None:
        names = {"EPOCHS": 1_000_000, "ROWS": 64, **more.pop("names", {})}
        super().__init__(TensorflowPs, folder, source, names=names, **more)

    async def launch(self, *slots: str, servers: int = 1) -> None:
        self.generation += 1
        await self.engine.launch(self.generation, slots, {}, servers)

    async def rescale(self, *slots: str, servers: int = 1) -> None:
        self.generation += 1
        await self.engine.rescale(self.generation, slots, {}, servers)

    def events(self, event: str) -> list[dict[str, Any]]:
        return [step for step in self.steps() if step.get("event") == event]

    async def trained(self, shape: list[int], after: int = 0) -> dict[str, Any]:
        """Wait for an epoch on so many workers and servers, later than the events that were `after`."""
        return await self.until(
            lambda: next((s for s in self.steps()[after:] if (s["event"], s["shape"]) == ("epoch", shape)), None),
            LONG_S,
        )

    def killed(self, rank: int) -> None:
        """SIGKILL a process of the cluster by its rank; from behind with a negative one."""
        members = sorted(self.engine.members.values(), key=lambda member: member.rank)
        members[rank].process.send(signal.SIGKILL)


@pytest.fixture(scope="module", autouse=True)
def warm_parent(warm_pool: None) -> None:
    """TensorFlow is imported, however long that takes here."""

    async def connect() -> None:
        found = workers.address(sys.executable, os.environ, ("tensorflow",))
        (await found.connect(start=True)).close()

    asyncio.run(connect())


def check_steps(bench: ClusterBench) -> None:
    """Every epoch has all its steps once, and takes up what the one before has left."""
    for step in bench.steps():
        if step["event"] in {"epoch", "restored"}:
            assert step["applied"] == STEPS * step["epoch"], bench.story()
    sums = {step["epoch"]: step["sum"] for step in bench.events("epoch")}
    for step in bench.events("restored"):
        if step["epoch"]:
            assert step["sum"] == sums[step["epoch"]], bench.story()


@asynchronous
async def test_workers_and_servers_come_and_go_and_die_and_every_step_counts_once(folder: Path) -> None:
    async with ClusterBench(folder, out=("total", "epochs")) as bench:
        await bench.launch("h:0", "h:1")
        await bench.trained([1, 1])
        await bench.until(lambda: bench.of("RunningReported")[-1].elastic is True)
        await bench.rescale("h:0", "h:2", "h:1")
        await bench.trained([2, 1])
        await bench.rescale("h:0", "h:2", "h:1", "h:3", servers=2)
        await bench.trained([2, 2])
        assert bench.released == []
        for rank in PLACES.values():
            seen = len(bench.steps())
            bench.killed(rank)
            await bench.until(lambda seen=seen: any(s["event"] == "restored" for s in bench.steps()[seen:]), LONG_S)
            await bench.trained([2, 2], seen)
        assert len(bench.of("DeathReported")) == len(PLACES)
        await bench.rescale("h:0", "h:1")
        await bench.trained([1, 1], len(bench.steps()))
        assert sorted(bench.released) == ["h:2", "h:3"]
        assert (await bench.running()).slots == ("h:0", "h:1")
        bench.finish()
        ended = await bench.ended(LONG_S)
        assert ended.outcome == "completed", bench.story()
        check_steps(bench)
        (result,) = bench.results().values()
        assert result["total"] == STEPS * result["epochs"]
        assert processes.living(bench.engine.pids()) == []


@pytest.mark.parametrize("check", ENGINE_CHECKS)
def test_the_engine_keeps_the_promises_of_all_engines(check: str, tmp_path: Path) -> None:
    check_engine(TensorflowPs, tmp_path, check)
