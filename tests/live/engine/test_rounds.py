"""Round after round in one job: grow, shrink, rank 0 killed, another killed, two changes 10 ms apart.

Once by default, ten times with JUPYTER_ELASTIC_TEST_EVERYTHING; for PyTorch and for TensorFlow.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from tests.live.engine.bench import TENSORFLOW, TORCH, Bench, asynchronous, check_training, needs

ROUNDS = 10 if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(TORCH, id="torch", marks=needs("torch")),
        pytest.param(TENSORFLOW, id="tensorflow", marks=needs("tensorflow")),
    ],
)
@asynchronous
async def test_rounds(folder: Path, source: str) -> None:
    async with Bench(Horovod, folder, source, out=("steps", "weights")) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        for _ in range(ROUNDS):
            begun = time.time()
            await bench.rescale("h:0", "h:1")
            await bench.step_at(2, begun)
            begun = time.time()
            await bench.rescale("h:0")
            await bench.step_at(1, begun)
            await bench.rescale("h:0", "h:1")
            for rank in (0, 1):
                await bench.step_at(2, time.time())
                killed = time.time()
                bench.kill(rank)
                await bench.step_at(2, killed + 0.01)  # its slot has a new worker
            await bench.rescale("h:0")
            await asyncio.sleep(0.01)
            begun = time.time()
            await bench.rescale("h:0", "h:1", "h:2")
            await bench.step_at(3, begun)
            begun = time.time()
            await bench.rescale("h:0")
            await bench.step_at(1, begun)
        bench.finish()
        assert (await bench.ended()).outcome == "completed"
        check_training(bench)
