"""Random grows, shrinks and kills: whatever happens, no step is missing and all ranks end with the same weights."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.platform import processes
from tests.live.engine.bench import TENSORFLOW, TORCH, Bench, asynchronous, check_training, needs
from tests.live.engine.test_torch_distributed import cell

EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))
PAUSES_S = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


async def chaos(bench: Bench, seed: int, count: int) -> None:
    chance = random.Random(seed)
    slots = ["h:0"]
    await bench.launch(*slots)
    await bench.step_at(1)
    for number in range(count):
        await asyncio.sleep(chance.choice(PAUSES_S))
        what = chance.choice(["grow", "grow", "shrink", "kill"])
        if what == "grow" and len(slots) < 4:
            used = {*slots, *(member.slot for member in bench.engine.members.values())}
            slots.append(next(slot for slot in (f"h:{i}" for i in range(99)) if slot not in used))
            await bench.rescale(*slots)
        elif what == "shrink" and len(slots) > 1:
            slots.pop(chance.choice([0, -1]))
            await bench.rescale(*slots)
        elif what == "kill" and (living := bench.engine.pids()):
            processes.send(chance.choice(living), signal.SIGKILL)
        if number % 10 == 9:  # it must come to rest, and step on at the wanted size
            await bench.step_at(len(slots), time.time())
    await bench.step_at(len(slots), time.time())
    bench.finish()
    assert (await bench.ended()).outcome == "completed", bench.story()
    check_training(bench)


@needs("torch")
@pytest.mark.parametrize("seed", range(15) if EVERYTHING else [4])
@pytest.mark.timeout(300)
@asynchronous
async def test_chaos(folder: Path, seed: int) -> None:
    async with Bench(Horovod, folder, TORCH, out=("steps", "weights")) as bench:
        await chaos(bench, seed, 20)


@pytest.mark.parametrize("seed", range(15) if EVERYTHING else [4])
@pytest.mark.timeout(300)
@asynchronous
async def test_chaos_torch_distributed(folder: Path, seed: int) -> None:
    pytest.importorskip("torch")
    async with Bench(Torch, folder, cell(), out=("steps", "weights")) as bench:
        await chaos(bench, seed, 20)


@needs("tensorflow")
@pytest.mark.skipif(not EVERYTHING, reason="minutes long: set JUPYTER_ELASTIC_TEST_EVERYTHING")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.timeout(600)
@asynchronous
async def test_chaos_tensorflow(folder: Path, seed: int) -> None:
    async with Bench(Horovod, folder, TENSORFLOW, out=("steps", "weights")) as bench:
        await chaos(bench, seed, 20)
