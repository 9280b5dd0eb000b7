"""Frameworks of a fixed size in a real pool: wishes to resize them and colleagues come and go, they train on together.

With JUPYTER_ELASTIC_TEST_EVERYTHING ten times each; the short form is `test_rigid`.
"""

from __future__ import annotations

import contextlib
import os
import random

import pytest

from jupyter_elastic.protocol.wire import SwitchPolicy
from jupyter_elastic.types import RescaleRequested
from jupyter_elastic.types.errors import ElasticError
from tests.live.engine import torch_cells
from tests.live.engine.bench import needs
from tests.live.engine.test_multi_worker import FIT
from tests.live.engine.test_torchrun import framework
from tests.support.pool import Pool

EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))
PACED = (
    "seen.append(index)",
    "(seen.append(index), __import__('time').sleep(0.01), print('on its way', flush=True))",
)


@pytest.mark.skipif(not EVERYTHING, reason="minutes; set JUPYTER_ELASTIC_TEST_EVERYTHING")
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(torch_cells.DDP.replace("range(2)", "range(12)"), id="ddp", marks=needs("torch")),
        pytest.param(torch_cells.FSDP.replace("range(4)", "range(14)"), id="fsdp2", marks=needs("torch")),
        pytest.param(
            torch_cells.ACCELERATE.replace("range(2)", "range(6)"),
            id="accelerate",
            marks=[needs("torch"), framework("accelerate")],
        ),
        pytest.param(
            torch_cells.LIGHTNING.replace("max_epochs=2", "max_epochs=8"),
            id="lightning",
            marks=[needs("torch"), framework("lightning")],
        ),
        pytest.param(
            torch_cells.TRAINER.replace("num_train_epochs=1", "num_train_epochs=8"),
            id="trainer",
            marks=[needs("torch"), framework("transformers")],
        ),
        pytest.param(FIT, id="multi worker mirrored strategy", marks=needs("tensorflow")),
    ],
)
def test_wishes_to_resize_leave_it_alone(shared_pool: Pool, source: str, number: int) -> None:
    pool, chance = shared_pool, random.Random(number)
    pool.client.ask(SwitchPolicy(name="elastic_fifo", options={"cooldown": 0.0, "payback": 0.0}))
    try:
        paced = source.replace(*PACED)
        job = pool.submit(paced, slots=(1, 2), engine=chance.choice(["horovod", "process"]), out=("weights", "size"))
        pool.running(job, elastic=False)
        others = []
        for _ in range(4):
            if chance.random() < 0.5:
                others.append(pool.submit("print('a colleague')"))
            else:
                with contextlib.suppress(ElasticError):  # it says that the cell has no elastic loop
                    pool.job(job).resize(chance.choice([1, "1:2", 2]))
        end = pool.ended(job)
        assert end.outcome == "completed", end
        results = pool.job(job).results
        assert results[0] == results[1]
        assert results[0]["size"] == 2
        assert not [data for data in pool.events_of(job) if isinstance(data, RescaleRequested)]
        for other in others:
            assert pool.ended(other).outcome == "completed", pool.events_of(other)
    finally:
        pool.client.ask(SwitchPolicy(name="fifo"))
