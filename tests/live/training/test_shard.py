"""Workers that hold data of their own: samples move to where they are computed soonest, and each is trained once."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch_distributed.driver import Torch
from tests.live.engine.bench import NOTE, Bench

EVERYTHING = os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING")
HELD = {0: 120, 1: 8}

CELL = (
    NOTE
    + """
import numpy as np, torch
from jupyter_elastic import training
from jupyter_elastic.training import local_shards
from jupyter_elastic.training.context import context
from jupyter_elastic.training.pace import pace

local_shards.CHUNK = 2000                                   # several rounds
clock = [0.0]                                               # speeds are what the cell says, however busy the machine is
pace.clock = lambda: clock[0]
who = int(os.environ["LOCAL_RANK"])
rng = np.random.default_rng(who)
numbers = np.arange(HELD[who]) + 1000 * who                 # each sample says whose it is
mine = training.shard((numbers, rng.normal(size=(HELD[who], 6)).astype("float32")), balance="auto")

torch.manual_seed(0)
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = training.State(model=model, optimizer=optimizer)

@training.run
def train(state):
    for state.epoch in state.epochs(EPOCHS):
        for ids, x in training.batches(mine, 16):
            clock[0] += 0.01 * len(ids)
            loss = (model(torch.from_numpy(x)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not context.warming_up:
                note(epoch=state.epoch, step=state.step, rank=training.rank(), size=training.size(), held=len(mine),
                     ids=ids.tolist() if context.weight else [])
        state.commit()

train(state)
moved = mine.sent_samples, mine.received_samples, len(mine)
weights = [p.detach().numpy().tolist() for p in model.parameters()]
"""
)


def trained(bench):
    """How often each sample was trained, by epoch."""
    found = defaultdict(Counter)
    for step in bench.steps():
        found[step["epoch"]].update(step["ids"])
    return found


def everything(*workers):
    return {1000 * worker + number for worker in workers for number in range(HELD[worker])}


@pytest.mark.parametrize("engine", [Torch, Horovod])
def test_samples_move_and_each_is_trained_once_an_epoch(engine, warm_workers, tmp_path):
    async def story():
        names = {"HELD": HELD, "EPOCHS": 4}
        async with Bench(engine, tmp_path / "job", CELL, names=names, out=("moved", "weights")) as bench:
            await bench.launch("h:0", "h:1")
            assert (await bench.ended(120)).outcome == "completed", bench.story()
            return bench

    bench = asyncio.run(story())
    for epoch, found in trained(bench).items():
        assert set(found) == everything(0, 1), epoch
        assert set(found.values()) == {1}, epoch
    steps = {rank: [s["step"] for s in bench.steps() if s["rank"] == rank] for rank in (0, 1)}
    assert steps[0] == steps[1] == list(range(1, len(steps[0]) + 1)), "all take the same number of steps"
    results = bench.results()
    held = [results[rank]["moved"][2] for rank in (0, 1)]
    assert sum(held) == sum(HELD.values())
    assert abs(held[0] - held[1]) <= 2, "equally fast workers train equally many"
    assert results[0]["moved"][0] + results[1]["moved"][0] == results[0]["moved"][1] + results[1]["moved"][1] > 0
    assert results[0]["weights"] == results[1]["weights"]


@pytest.mark.skipif(
    not EVERYTHING, reason="the settling after a death is a unit test; set JUPYTER_ELASTIC_TEST_EVERYTHING"
)
@pytest.mark.parametrize("engine", [Torch, Horovod])
def test_what_a_dead_worker_had_received_returns(engine, warm_workers, tmp_path):
    async def story():
        async with Bench(engine, tmp_path / "job", CELL, names={"HELD": HELD, "EPOCHS": 8}, out=("moved",)) as bench:
            await bench.launch("h:0", "h:1")
            await bench.until(lambda: any(s["rank"] == 1 and s["held"] > HELD[1] for s in bench.steps()))
            bench.kill(1)
            assert (await bench.ended(120)).outcome == "completed", bench.story()
            return bench

    last = trained(asyncio.run(story()))[7]
    assert everything(0) <= set(last)
    assert set(last.values()) == {1}
