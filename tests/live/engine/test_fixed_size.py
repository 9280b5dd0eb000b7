"""Jobs of a fixed size: the death of a rank at any moment of their training ends them, soon and by its name.

Once for each framework, ten times with JUPYTER_ELASTIC_TEST_EVERYTHING.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from tests.live.engine import torch_cells
from tests.live.engine.bench import Bench, asynchronous, needs
from tests.live.engine.test_multi_worker import FIT
from tests.live.engine.test_torchrun import TRAINED_S, framework

ROUNDS = range(10 if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else 1)


def endless(source: str, before: str, after: str) -> str:
    """The cell without an end, and with a word from every rank when it is on its way."""
    assert before in source
    return source.replace(before, after).replace(
        "seen.append(index)", "seen.append(index) or len(seen) != 40 or print('on its way', flush=True)"
    )


FITTED = endless(
    FIT,
    "epochs=2,",
    "epochs=10**9, callbacks=[tf_keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: say())],",
).replace("strategy =", "say = lambda: print('on its way', flush=True)\nstrategy =", 1)


@pytest.mark.parametrize("number", ROUNDS)
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(endless(torch_cells.DDP, "range(2)", "range(10**9)"), id="ddp", marks=needs("torch")),
        pytest.param(endless(torch_cells.FSDP, "range(4)", "range(10**9)"), id="fsdp2", marks=needs("torch")),
        pytest.param(
            endless(torch_cells.ACCELERATE, "range(2)", "range(10**9)"),
            id="accelerate",
            marks=[needs("torch"), framework("accelerate")],
        ),
        pytest.param(
            endless(torch_cells.LIGHTNING, "max_epochs=2", "max_epochs=-1"),
            id="lightning",
            marks=[needs("torch"), framework("lightning")],
        ),
        pytest.param(
            endless(torch_cells.TRAINER, "num_train_epochs=1", "num_train_epochs=10**6"),
            id="trainer",
            marks=[needs("torch"), framework("transformers")],
        ),
        pytest.param(FITTED, id="multi worker mirrored strategy", marks=needs("tensorflow")),
    ],
)
@asynchronous
async def test_a_death_ends_it_with_its_rank(folder: Path, source: str, number: int) -> None:
    chance = random.Random(number)
    async with Bench(Horovod if source is FITTED else Torch, folder, source) as bench:
        await bench.launch("h:0", "h:1")
        await bench.until(lambda: all("on its way" in bench.text(rank) for rank in (0, 1)), TRAINED_S)
        await asyncio.sleep(chance.random() * 0.3)
        victim = chance.randrange(2)
        bench.kill(victim)
        seen = await bench.ended()
        assert seen.outcome == "failed", bench.story()
        assert f"rank {victim}: the worker was killed by SIGKILL" in seen.reason
