"""Real trainings under `coach` and `dynamic`: two workers tried and left again, and grown where a slot comes free."""

from __future__ import annotations

import os
from typing import Any

import pytest

from jupyter_elastic.protocol import wire
from jupyter_elastic.types import RescaleRequested
from tests.support.pool import Pool, pool  # noqa: F401

TRAINING = """
import time, numpy, torch
from jupyter_elastic import training

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = training.State(model=model, optimizer=optimizer)
x = numpy.zeros((1_000_000, 4), dtype="float32")

@training.run
def train(state):
    for state.epoch in state.epochs(1):
        for part in training.batches(x, batch_size=16):
            time.sleep(0.05 * training.size())  # the more workers, the slower
            loss = model(torch.from_numpy(part)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            training.report(loss=loss)
            state.commit()

train(state)
"""
WAITS = "import os, time\nwhile not os.path.exists(end): time.sleep(0.05)"


def rescaled(pool: Pool, job: int, count: int) -> list[int]:  # noqa: F811
    """The slots of the job's first rescales, when there are so many."""

    def found() -> list[int] | None:
        sizes = [len(data.slots) for data in pool.events_of(job) if isinstance(data, RescaleRequested)]
        return sizes if len(sizes) >= count else None

    sizes: Any = pool.until(found, f"{count} rescales of job {job}")
    return list(sizes)


@pytest.mark.skipif("JUPYTER_ELASTIC_TEST_EVERYTHING" not in os.environ, reason="takes up to a minute")
def test_coach_leaves_what_disappoints_and_dynamic_grows_into_what_comes_free(pool, tmp_path):  # noqa: F811
    pool.client.ask(wire.SwitchPolicy(name="coach", options={"cooldown": 2}))
    job = pool.submit(TRAINING, slots=(1, 2), engine="horovod")
    assert rescaled(pool, job, 2)[:2] == [2, 1]
    pool.until(lambda: "(2 sizes measured" in pool.job(job).explain(), "the explanation by what was measured")
    pool.cancel(job)
    pool.ended(job)
    pool.client.ask(wire.SwitchPolicy(name="dynamic", options={"cooldown": 2}))
    end = tmp_path / "end"
    beside = pool.submit(WAITS, names={"end": str(end)})
    job = pool.submit(TRAINING, slots=(1, 2), engine="horovod")
    pool.until(lambda: (info := pool.info(job)).progress is not None and info.progress.samples_per_s, "a speed")
    assert len(pool.info(job).slots) == 1
    end.touch()
    assert pool.ended(beside).outcome == "completed"
    assert rescaled(pool, job, 1)[0] == 2
    pool.cancel(job)
    pool.ended(job)
