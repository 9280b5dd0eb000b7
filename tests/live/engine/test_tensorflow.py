"""Engine `horovod` with TensorFlow: the same doors."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from jupyter_elastic.agent.engines.horovod import Horovod
from tests.live.engine.bench import TENSORFLOW, Bench, asynchronous, check_training, needs

pytestmark = needs("tensorflow")


@asynchronous
async def test_grows_shrinks_and_survives(folder: Path) -> None:
    async with Bench(Horovod, folder, TENSORFLOW, out=("steps", "weights")) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await asyncio.sleep(0.01)
        await bench.rescale("h:0", "h:1", "h:2")
        await bench.step_at(3)
        assert (await bench.running()).pause_s > 0
        await bench.rescale("h:0", "h:1")
        await bench.step_at(2, time.time())
        for rank in (1, 0):
            killed = time.time()
            bench.kill(rank)
            await bench.step_at(1, killed)
            await bench.step_at(2, time.time())
        bench.finish()
        assert (await bench.ended()).outcome == "completed"
        check_training(bench)
