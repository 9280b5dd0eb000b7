"""Cells as Horovod's elastic examples are built: a newcomer has its rank and size from `hvd.init()` on.

One short pass of each; ten with random grows, shrinks and kills with JUPYTER_ELASTIC_TEST_EVERYTHING.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.protocol.worker_messages import Unmet
from tests.live.engine import elastic_cells as cells
from tests.live.engine.bench import Bench, asynchronous, check_training, needs
from tests.live.engine.test_chaos import chaos

EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))
OUT = ("steps", "weights")
torch, tensorflow = needs("torch"), needs("tensorflow")
every_kind = pytest.mark.parametrize(
    ("cell", "env"),
    [
        pytest.param(cells.SAMPLER, {}, id="sampler", marks=torch),
        pytest.param(cells.MET, {}, id="met", marks=torch),
        pytest.param(cells.FIT, cells.LEGACY, id="fit", marks=tensorflow),
        pytest.param(cells.TAPE, cells.LEGACY, id="tape", marks=tensorflow),
    ],
)


def left(folder: Path) -> list[Path]:
    """What was kept apart, and still is."""
    return list(folder.glob("newcomer.*"))


async def end(bench: Bench) -> None:
    """All ranks come to the same end."""
    bench.finish()
    assert (await bench.ended()).outcome == "completed", bench.story()
    check_training(bench)


@every_kind
@pytest.mark.timeout(180)
@asynchronous
async def test_grows_shrinks_and_replaces_the_dead(folder: Path, cell: str, env: dict[str, str]) -> None:
    async with Bench(Horovod, folder, cell, out=OUT, env=env) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        await bench.rescale("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await bench.step_at(2, time.time())
        before = {step["pid"] for step in bench.steps()}
        bench.kill(0)
        await bench.until(lambda: any(s["size"] == 2 and s["pid"] not in before for s in bench.steps()))
        await end(bench)


@pytest.mark.skipif(not EVERYTHING, reason="minutes long: set JUPYTER_ELASTIC_TEST_EVERYTHING")
@every_kind
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.timeout(300)
@asynchronous
async def test_random_changes(folder: Path, cell: str, env: dict[str, str], seed: int) -> None:
    async with Bench(Horovod, folder, cell, out=OUT, env=env) as bench:
        await chaos(bench, seed, 12)


@torch
@asynchronous
async def test_a_sampler_that_nobody_makes_anew_splits_for_the_group_that_there_is(folder: Path) -> None:
    async with Bench(Horovod, folder, cells.MADE_ONCE, out=OUT) as bench:
        slots = ("h:0", "h:1", "h:2")
        await bench.launch("h:0")
        for count in (1, 3, 2, 3):
            await bench.rescale(*slots[:count])
            await bench.step_at(count, time.time())
        bench.kill(0)
        await bench.until(lambda: len({step["pid"] for step in bench.steps() if step["size"] == 3}) > 3)
        await end(bench)
        for step in bench.steps():
            assert step["part"] == [step["rank"], step["size"], 12 // step["size"]]


@torch
@asynchronous
async def test_what_a_newcomer_prints_goes_to_the_rank_that_it_joins_as(folder: Path) -> None:
    async with Bench(Horovod, folder, cells.SAMPLER, out=OUT) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await asyncio.sleep(0.01)
        await bench.rescale("h:0", "h:1", "h:2")  # the first newcomer starts over: two of three, not of two
        await bench.step_at(3)
        await end(bench)
        assert bench.text(0) == "sampler 0 of 1\n"
        assert sorted([bench.text(1), bench.text(2)]) == ["sampler 1 of 3\n", "sampler 2 of 3\n"]
        assert left(folder) == []


@torch
@asynchronous
async def test_an_error_of_a_newcomer_before_it_joins_is_shown(folder: Path) -> None:
    source = cells.SAMPLER.replace("model = torch", "if os.path.exists(FOLDER + '/late'): 1 / 0\nmodel = torch", 1)
    async with Bench(Horovod, folder, source, out=OUT) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        (folder / "late").touch()
        await bench.rescale("h:0", "h:1")
        await bench.until(lambda: bench.of("DeathReported"))
        assert bench.text(1) == "sampler 1 of 2\n"
        assert "ZeroDivisionError" in bench.text(1, "stderr")
        await end(bench)


@torch
@asynchronous
async def test_a_collective_that_nobody_meets_is_made_alone_and_said(folder: Path) -> None:
    async with Bench(Horovod, folder, cells.UNMET, out=OUT) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await bench.step_at(2)
        await bench.rescale("h:0", "h:1", "h:2")
        await bench.step_at(3)
        await end(bench)
        assert "made by this new worker alone" in bench.text(1, "stderr")


@torch
@asynchronous
async def test_a_collective_that_nobody_meets_is_not_met_by_the_next_one_of_the_same_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members' `state.sync()` broadcasts the same weights: also before the driver has read that nobody meets it."""
    received = Horovod.group_message

    def slow(engine: Horovod, member: Any, message: Any) -> None:
        if isinstance(message, Unmet):
            asyncio.get_running_loop().call_later(1.0, received, engine, member, message)
        else:
            received(engine, member, message)

    monkeypatch.setattr(Horovod, "group_message", slow)
    async with Bench(Horovod, folder, cells.UNMET, out=OUT) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await bench.step_at(2)
        await end(bench)


@torch
@asynchronous
async def test_a_job_that_comes_back_with_another_size_runs_its_reset_callbacks(folder: Path) -> None:
    async with Bench(Horovod, folder, cells.SAMPLER, out=OUT) as bench:
        await bench.launch("h:0")
        await bench.until(lambda: any(step["step"] > 3 for step in bench.steps()))
        await bench.engine.stop("preempt")
        assert (await bench.ended()).outcome == "preempted"
    async with Bench(Horovod, folder, cells.SAMPLER, out=OUT, attempt=2) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        await end(bench)
        assert len(bench.results()) == 2


@torch
@asynchronous
async def test_a_newcomer_takes_over_the_learning_rate(folder: Path) -> None:
    async with Bench(Horovod, folder, cells.DECAY, out=OUT) as bench:
        await bench.launch("h:0")
        await bench.until(lambda: any(step["step"] > 14 for step in bench.steps()))  # beyond the first epoch
        await bench.rescale("h:0", "h:1")
        await bench.step_at(2)
        await end(bench)
        assert len(bench.results()) == 2
