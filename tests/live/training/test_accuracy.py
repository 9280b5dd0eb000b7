"""Real data to the end: a job that grows, loses a worker and shrinks is as accurate as one that nothing happens to.

Scikit-learn's digits, 1 -> 2 -> SIGKILL of rank 0 -> 2 -> 1, against one worker left alone. One seed by default, three
and Keras too with JUPYTER_ELASTIC_TEST_EVERYTHING; PyTorch on both engines.
"""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from tests.live.engine.bench import Bench
from tests.support.marks import everything

SEEDS = (0, 1, 2) if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else (0,)
EPOCHS = 10
POINT = 0.01

LOOP = """
from jupyter_elastic.training.context import context
state = training.State(model=model, optimizer=optimizer)

@training.run
def train(state):
    for state.epoch in state.epochs(EPOCHS):
        for x, y in training.batches((x_train, y_train), 64, seed=SEED):
            step(x, y)
            if not context.warming_up:
                with open(f"{FOLDER}/steps", "a") as file:
                    file.write(json.dumps({"step": state.step, "size": training.size(), "at": time.time()}) + "\\n")
            if not os.path.exists(f"{FOLDER}/hurry"):
                time.sleep(0.03)
            if state.step % 5 == 0:
                state.commit()

train(state)
"""
TORCH = (
    """
import json, os, time
import torch
from jupyter_elastic import training

torch.manual_seed(SEED)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
x_train, x_test = torch.from_numpy(x_train), torch.from_numpy(x_test)
y_train, y_test = torch.from_numpy(y_train), torch.from_numpy(y_test)

def step(x, y):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
    + LOOP
    + "accuracy = float((model(x_test).argmax(1) == y_test).float().mean())\n"
)
KERAS = (
    """
import json, os, time
import keras
from jupyter_elastic import training

keras.utils.set_random_seed(SEED)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
optimizer = keras.optimizers.Adam(0.005)
step = training.keras.train_step(model, optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
"""
    + LOOP
    + "accuracy = float((model.predict(x_test, verbose=0).argmax(1) == y_test).mean())\n"
)


@pytest.fixture(scope="module")
def digits():
    """Train and test part of the data set."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images.astype("float32") / 16, labels.astype("int64"), test_size=0.2, random_state=0, stratify=labels
    )
    return {"x_train": x_train, "x_test": x_test, "y_train": y_train, "y_test": y_test}


async def left_alone(bench):
    (bench.folder / "hurry").touch()
    await bench.launch("h:0")


async def shaken(bench):
    await bench.launch("h:0")
    await bench.step_at(1)
    await bench.rescale("h:0", "h:1")
    await bench.step_at(2)
    killed = time.time()
    bench.kill(0)
    await bench.step_at(2, killed + 0.01)  # its slot has a new worker
    await bench.rescale("h:0")
    await bench.step_at(1, time.time())
    (bench.folder / "hurry").touch()


def accuracy(engine, folder, source, names, story):
    """Of the trained model on data it never saw."""

    async def live():
        async with Bench(engine, folder, source, names=names, out=("accuracy",)) as bench:
            await story(bench)
            assert (await bench.ended(240)).outcome == "completed", bench.story()
            assert {step["step"] for step in bench.steps()} == set(range(1, 23 * EPOCHS + 1))
            return bench.results()[0]["accuracy"]

    return asyncio.run(live())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("engine", "framework", "source"),
    [(Horovod, "torch", TORCH), (Torch, "torch", TORCH), pytest.param(Horovod, "keras", KERAS, marks=everything)],
    ids=["torch", "torch.distributed", "keras"],
)
def test_an_elastic_run_is_as_accurate_as_a_static_one(warm_workers, tmp_path, digits, engine, framework, source, seed):
    pytest.importorskip(framework)
    names = {**digits, "SEED": seed, "EPOCHS": EPOCHS}
    static = accuracy(engine, tmp_path / "static", source, names, left_alone)
    elastic = accuracy(engine, tmp_path / "elastic", source, names, shaken)
    assert static > 0.9  # it learned
    assert abs(elastic - static) <= POINT
