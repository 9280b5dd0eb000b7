"""A plain cell under a range of slots keeps its size while others come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_elastic.protocol.wire import SwitchPolicy
from jupyter_elastic.types import RescaleRequested
from tests.live.engine.bench import needs
from tests.support.pool import Pool

PLAIN = """
import os, time
print("begun", rank, flush=True)
while not os.path.exists(FOLDER + "/go"):
    time.sleep(0.02)
print("through", rank, world_size)
"""
RING = """
import os, time, torch
import horovod.torch as hvd
hvd.init()
print("begun", rank, flush=True)
while not hvd.allreduce(torch.tensor([float(os.path.exists(FOLDER + "/go"))])).item():
    time.sleep(0.02)
print("through", hvd.rank(), hvd.size())
"""
"""A loop as it is written for `horovodrun`."""


@pytest.mark.parametrize(
    ("source", "engine"),
    [(PLAIN, "process"), pytest.param(RING, "horovod", marks=needs("torch"))],
    ids=["plain", "horovodrun"],
)
def test_a_plain_cell_keeps_its_workers_when_a_colleague_comes(
    lasting_pool: Pool, tmp_path: Path, source: str, engine: str
) -> None:
    pool = lasting_pool
    pool.client.ask(SwitchPolicy(name="elastic_fifo"))
    try:
        job = pool.submit(source, slots=(1, 2), engine=engine, names={"FOLDER": str(tmp_path)})
        pool.printed(job, "begun", 1)
        pool.running(job, elastic=False)
        other = pool.submit("print('at last')", slots=1)
        assert "size stays 2: this cell has no elastic loop" in pool.job(job).explain()
        (tmp_path / "go").touch()
        assert pool.ended(job).outcome == "completed"
        assert pool.ended(other).outcome == "completed"
        for rank in range(2):
            assert pool.output(job, rank) == f"begun {rank}\nthrough {rank} 2\n"
        assert not [data for data in pool.events_of(job) if isinstance(data, RescaleRequested)]
    finally:
        pool.client.ask(SwitchPolicy(name="fifo"))


def test_a_resumable_cell_makes_room_for_a_colleague(lasting_pool: Pool, tmp_path: Path) -> None:
    pool = lasting_pool
    pool.client.ask(SwitchPolicy(name="elastic_fifo", options={"cooldown": 0.0, "payback": 0.0}))
    try:
        job = pool.submit(PLAIN, slots=(1, 2), names={"FOLDER": str(tmp_path)}, resumable=True)
        pool.printed(job, "begun", 1)
        pool.running(job, elastic=True)
        other = pool.submit("print('at last')", slots=1)
        assert pool.ended(other).outcome == "completed"
        (tmp_path / "go").touch()
        assert pool.ended(job).outcome == "completed"
        assert [data for data in pool.events_of(job) if isinstance(data, RescaleRequested)]
        assert pool.output(job, 0).count("begun 0") >= 2
    finally:
        pool.client.ask(SwitchPolicy(name="fifo"))


HIDDEN = """
import os, time, torch
from jupyter_elastic import training
def go(folder):
    state = training.State(rounds=0)
    @training.run
    def train(state):
        while not training.total(float(os.path.exists(folder + "/go"))):
            state.rounds += 1
            state.commit()
            time.sleep(0.01)
    train(state)
"""


@needs("torch")
def test_a_loop_that_the_text_does_not_show_is_elastic_once_it_runs(lasting_pool: Pool, tmp_path: Path) -> None:
    pool = lasting_pool
    (tmp_path / "hidden_loop.py").write_text(HIDDEN)
    pool.client.ask(SwitchPolicy(name="elastic_fifo", options={"cooldown": 0.0, "payback": 0.0}))
    try:
        source = (
            f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport hidden_loop\nhidden_loop.go({str(tmp_path)!r})"
        )
        job = pool.submit(source, slots=(1, 2), engine="horovod")
        pool.running(job, elastic=False)
        pool.running(job, elastic=True)
        assert pool.ended(pool.submit("print('at last')")).outcome == "completed"
        assert pool.running(job, generation=2).pause_s > 0, "the ring says when it stands, not the worker that is left"
        (tmp_path / "go").touch()
        assert pool.ended(job).outcome == "completed"
    finally:
        pool.client.ask(SwitchPolicy(name="fifo"))
