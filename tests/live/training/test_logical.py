"""Logical workers: whatever happens to the processes, the same bits come out, and each sample is used once an epoch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

import pytest

from jupyter_elastic.driver.driver import load_engine
from jupyter_elastic.types.errors import EngineError
from tests.live.engine.bench import NOTE, Bench

ENGINES = ("horovod", "torch")
EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))
HISTORIES = 50 if EVERYTHING else 1

CELL = (
    NOTE
    + """
import hashlib, random
import numpy as np
import torch
from jupyter_elastic import training
from jupyter_elastic.training.context import context

if PLAIN:                                   # as it would be without a fixed order: each process adds up what it has
    import jupyter_elastic.training.frameworks.torch_gradients as reducing
    class PlainSum:
        def __init__(self, workers, rank, size):
            self.sum, self.size = None, size
        def add(self, worker, tensors):
            self.sum = tensors if self.sum is None else [a + b for a, b in zip(self.sum, tensors)]
        def total(self, allreduce, zeros_like):
            return allreduce(self.sum) if self.size > 1 else self.sum
    reducing.TreeSum = PlainSum

SAMPLES, BATCH, EPOCHS = 128, 32, 16
torch.manual_seed(0)
nn = torch.nn
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(SAMPLES, 16), torch.randint(0, 4, (SAMPLES,))
state = training.State(model=model, optimizer=optimizer, used=np.zeros((EPOCHS, SAMPLES)), logical_workers=WORKERS)

@training.run
def train(state):
    mine, step = np.zeros(SAMPLES), state.step
    for state.epoch in state.epochs(EPOCHS):
        scale = random.random()
        for inputs, outputs, numbers in training.batches((x, y, torch.arange(SAMPLES)), BATCH):
            noise = np.random.rand() * torch.rand_like(inputs)
            loss = scale * nn.functional.cross_entropy(model(inputs + noise), outputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            training.report(loss=loss)
            mine[numbers] += 1
            if state.step == step:
                continue
            used = training.total(mine)
            step, state.used = state.step, state.used + (np.arange(EPOCHS) == state.epoch)[:, None] * used
            mine[:] = 0
            if not context.warming_up:
                note(rank=training.rank(), size=training.size(), step=step)
            if step % 4 == 3:
                state.commit()
            if not os.path.exists(f"{FOLDER}/hurry"):
                time.sleep(0.02)
        state.commit()

train(state)
moments = [value for of in optimizer.state_dict()["state"].values() for value in of.values()]
digest = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in [*model.parameters(), *moments])).hexdigest()
once = bool((state.used == 1).all())
"""
)


def make(engine, folder, *, workers=4, plain=False):
    pytest.importorskip("torch")
    try:
        kind = load_engine(engine)
    except EngineError:
        pytest.skip(f"no engine {engine} is installed")
    if missing := kind.missing():
        pytest.skip(missing)
    return Bench(kind, folder / "job", CELL, names={"WORKERS": workers, "PLAIN": plain}, out=("digest", "once"))


async def outcome(bench):
    """What all ranks have computed."""
    assert (await bench.ended(120)).outcome == "completed", bench.story()
    results = list(bench.results().values())
    assert results
    assert all(result["once"] for result in results)
    digests = {result["digest"] for result in results}
    assert len(digests) == 1
    return digests.pop()


def static(engine, folder, size, **options):
    folder.mkdir(exist_ok=True)

    async def story():
        async with make(engine, folder, **options) as bench:
            (bench.folder / "hurry").touch()
            await bench.launch(*(f"h:{slot}" for slot in range(size)))
            return await outcome(bench)

    return asyncio.run(story())


@pytest.fixture(scope="module", params=ENGINES)
def reference(request, warm_workers, tmp_path_factory):
    """An engine, and what its run on one process computes."""
    return request.param, static(request.param, tmp_path_factory.mktemp("static"), 1)


def test_any_number_of_processes_computes_the_same_bits(reference, tmp_path):
    engine, expected = reference
    assert [static(engine, tmp_path / str(size), size) for size in (2, 3)] == [expected] * 2


def test_parts_that_are_no_whole_subtrees(reference, tmp_path):
    engine, _ = reference
    assert len({static(engine, tmp_path / str(size), size, workers=8) for size in (1, 3)}) == 1


@pytest.mark.skipif(not EVERYTHING, reason="JUPYTER_ELASTIC_TEST_EVERYTHING")
def test_without_the_fixed_order_the_bits_differ(reference, tmp_path):
    """The control: the tests of this file can fail."""
    engine, _ = reference
    assert len({static(engine, tmp_path / str(size), size, plain=True) for size in (1, 2, 3)}) > 1


def history(engine, folder, seed, *, plain=False):
    """What a job computes whose workers come, go and are killed by chance."""
    chance = random.Random(seed)

    async def story():
        async with make(engine, folder, plain=plain) as bench:
            await bench.launch("h:0", "h:1")
            await bench.step_at(2)
            await bench.rescale("h:0", "h:1", "h:2")
            await bench.until(lambda: len({s["step"] for s in bench.steps() if s["size"] == 3}) > 4)  # across a commit
            for _ in range(8):
                ranks = [m.rank for m in bench.engine.members.values() if m.process and m.was_member]
                if len(ranks) > 1 and chance.random() < 0.4:
                    with contextlib.suppress(StopIteration):  # it was gone already
                        bench.kill(chance.choice(ranks))
                else:
                    slots = sorted(chance.sample(range(3), chance.randint(1, 3)))
                    await bench.rescale(*(f"h:{slot}" for slot in slots))
                await asyncio.sleep(chance.random() * 0.2)
            (bench.folder / "hurry").touch()
            return await outcome(bench)

    return asyncio.run(story())


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_any_history_computes_the_same_bits(reference, seed, tmp_path):
    engine, expected = reference
    assert history(engine, tmp_path, seed) == expected


@pytest.mark.parametrize("seed", range(5 if EVERYTHING else 1))
def test_without_the_fixed_order_the_same_histories_compute_other_bits(reference, seed, tmp_path):
    """The control of the test above."""
    engine, expected = reference
    assert history(engine, tmp_path, seed, plain=True) != expected
