"""`--resumable`: a change of size or a death ends all workers, which go on from the script's own checkpoint."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process
from jupyter_elastic.engines.torch.driver import Torch
from tests.live.engine import resumable_cells
from tests.live.engine.bench import NOTE, Bench, asynchronous, needs
from tests.live.engine.test_torchrun import TRAINED_S, framework

minutes = pytest.mark.skipif(
    not os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"), reason="minutes; set JUPYTER_ELASTIC_TEST_EVERYTHING"
)
COUNT = (
    NOTE
    + """
path = os.path.join(FOLDER, f"count.{rank}")
begin = int(open(path).read()) if os.path.exists(path) else 0
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
port = os.environ["MASTER_PORT"]
print(f"start {restarts} at {begin}")
for step in range(begin, 10**6):
    with open(path + ".new", "w") as file:
        file.write(str(step + 1))
    os.replace(path + ".new", path)
    note(rank=rank, size=world_size, restarts=restarts, port=port)
    if stopped():
        break
    time.sleep(0.01)
"""
)


@asynchronous
async def test_it_grows_dies_shrinks_and_goes_on_from_its_own_checkpoint(folder: Path) -> None:
    async with Bench(Process, folder, COUNT, out=("restarts",), resumable=True) as bench:

        def rank_0(restarts: int) -> dict[str, Any] | None:
            steps = (step for step in bench.steps() if (step["restarts"], step["rank"]) == (restarts, 0))
            return next(steps, None)

        await bench.launch("h:0")
        assert (await bench.running()).elastic is True
        first = await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        assert (await bench.running()).pause_s > 0
        second = await bench.until(lambda: rank_0(1))
        assert (second["size"], first["restarts"]) == (2, 0)
        await bench.until(lambda: bench.text(1))
        assert second["port"] != first["port"]
        bench.kill(1)
        await bench.until(lambda: rank_0(2))
        (death,) = await bench.until(lambda: bench.of("DeathReported"))
        assert death.rank == 1
        await bench.until(lambda: bench.of("ReplacementReported"))
        assert bench.released == []
        await bench.rescale("h:1")
        last = await bench.step_at(1, time.time())
        assert (last["rank"], last["restarts"]) == (0, 3)
        assert bench.released == ["h:0"]
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert bench.results() == {0: {"restarts": 3}}
        begins = [int(line.split()[-1]) for line in bench.text(0).splitlines()]
        assert len(begins) == 4, "what earlier rounds printed is gone"
        assert begins == sorted(begins)
        assert begins[0] == 0 < begins[-1]


@asynchronous
async def test_a_planned_change_lets_a_script_save(folder: Path) -> None:
    source = (
        NOTE
        + """
import signal, sys
def save(*_):
    time.sleep(0.3)
    note(saved=rank, size=0)
    sys.exit(SAVED_WITH)
signal.signal(signal.SIGTERM, save)
note(size=world_size)
while not stopped():
    time.sleep(0.01)
"""
    )
    for code in (0, 1):
        (folder / "steps").unlink(missing_ok=True)
        (folder / "stop").unlink(missing_ok=True)
        async with Bench(Process, folder, source, names={"SAVED_WITH": code}, resumable=True) as bench:
            await bench.launch("h:0")
            await bench.step_at(1)
            await bench.rescale("h:0", "h:1")
            await bench.step_at(2)
            await bench.until(lambda: [s for s in bench.steps() if s["size"] == 2][1:])
            assert [s["saved"] for s in bench.steps() if "saved" in s] == [0]
            await bench.engine.stop("preempt")
            assert (await bench.ended()).outcome == "preempted", bench.story()
            assert sorted(s["saved"] for s in bench.steps() if "saved" in s) == [0, 0, 1]
            assert sorted(bench.released) == ["h:0", "h:1"]


@asynchronous
async def test_a_death_soon_after_each_restart_ends_it_with_that_death(folder: Path) -> None:
    source = "import os, signal\nprint('again', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)"
    async with Bench(Process, folder, source, resumable=True) as bench:
        await bench.launch("h:0")
        seen = await bench.ended()
        assert seen.outcome == "failed"
        assert "SIGSEGV" in seen.reason
        assert "again and again soon after each restart" in seen.reason
        assert bench.text(0).count("again") == 4
        assert bench.released == ["h:0"]


@asynchronous
async def test_its_own_error_ends_it_at_once(folder: Path) -> None:
    source = "if rank == 1:\n    raise ValueError('mine')\nimport time\ntime.sleep(60)"
    async with Bench(Process, folder, source, resumable=True) as bench:
        await bench.launch("h:0", "h:1")
        seen = await bench.ended()
        assert (seen.outcome, bench.engine.machine.restarts) == ("failed", 0)
        assert "ValueError: mine" in seen.reason


@pytest.mark.parametrize(
    ("engine", "source"),
    [
        pytest.param(Torch, resumable_cells.DDP, id="ddp"),
        pytest.param(Horovod, resumable_cells.HOROVOD, id="horovod", marks=needs("torch")),
        pytest.param(Torch, resumable_cells.ACCELERATE, id="accelerate", marks=[framework("accelerate"), minutes]),
        pytest.param(Torch, resumable_cells.LIGHTNING, id="lightning", marks=[framework("lightning"), minutes]),
        pytest.param(Torch, resumable_cells.TRAINER, id="trainer", marks=[framework("transformers"), minutes]),
    ],
)
@framework("torch")
@asynchronous
async def test_through_a_grow_and_a_death_it_comes_to_the_same_accuracy(
    tmp_path: Path, engine: type, source: str
) -> None:
    names = {"DISTURBED": False}
    async with Bench(engine, tmp_path / "alone", source, names=names, out=("accuracy",)) as alone:
        await alone.launch("h:0")
        assert (await alone.ended(TRAINED_S)).outcome == "completed", alone.story()
    names = {"DISTURBED": True}
    async with Bench(
        engine, tmp_path / "job", source, names=names, out=("accuracy", "restarts"), resumable=True
    ) as bench:
        await bench.launch("h:0")
        await bench.until(lambda: any(s["epoch"] >= 5 for s in bench.steps()), TRAINED_S)
        await bench.rescale("h:0", "h:1")
        assert (await bench.ended(TRAINED_S)).outcome == "completed", bench.story()
        (death,) = bench.of("DeathReported")
        assert (death.rank, death.cause) == (1, "was killed by SIGKILL")
        assert bench.of("ReplacementReported")
        for result in bench.results().values():
            assert result["restarts"] == 2
            assert result["accuracy"] == pytest.approx(alone.results()[0]["accuracy"], abs=0.01)
        assert alone.results()[0]["accuracy"] > 0.9
        first = {restart: min(s["epoch"] for s in bench.steps() if s["restarts"] == restart) for restart in range(3)}
        assert first[1] >= 5, "it began anew after the change of size"
        assert first[2] >= 10, "it began anew after the death"
