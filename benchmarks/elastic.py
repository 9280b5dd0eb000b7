"""Growing, shrinking and losing a worker: how long until the next step, and how long nobody steps.

Ours: a native `hvd.elastic.run` job (torch), a `training` job on both engines (torch) and one on Horovod (TensorFlow)
in a real pool, resized by its owner's wish. The peers are in `elastic_peers`.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import elastic_peers
from benchmarks.harness import row
from benchmarks.steps import Found, Steps
from jupyter_elastic.protocol import wire
from tests.support.pool import Pool

TORCH = """
import json, os, time
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(32, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())

@hvd.elastic.run
def train(state):
    while not os.path.exists(stop):
        x = torch.randn(64, 32)
        optimizer.zero_grad()
        ((model(x) - x[:, :4]) ** 2).mean().backward()
        optimizer.step()
        state.step += 1
        with open(steps, "a") as file:
            file.write(json.dumps([time.time(), hvd.rank(), hvd.size(), os.getpid()]) + "\\n")
        time.sleep(0.02)
        if state.step % 5 == 0:
            state.commit()

train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))
"""
KERAS = """
import json, os, time
import keras, numpy
from jupyter_elastic import training

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(4)])
optimizer = keras.optimizers.SGD(0.01)
train_step = training.keras.train_step(model, optimizer, keras.losses.MeanSquaredError())
state = training.State(model=model, optimizer=optimizer)
x = numpy.random.default_rng(0).normal(size=(64 * 40, 32)).astype("float32")

@training.run
def train(state):
    for state.epoch in state.epochs(100_000):
        for a, b in training.batches((x, x[:, :4]), batch_size=64):
            train_step(a, b)
            with open(steps, "a") as file:
                file.write(json.dumps([time.time(), training.rank(), training.size(), os.getpid()]) + "\\n")
            time.sleep(0.02)
            if os.path.exists(stop):
                return
            state.commit()

train(state)
"""
TRAINING = """
import json, os, time
import torch
from jupyter_elastic import training

torch.manual_seed(0)
model = torch.nn.Linear(32, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = training.State(model=model, optimizer=optimizer)
x = torch.randn(64 * 40, 32)

@training.run
def train(state):
    for state.epoch in state.epochs(100_000):
        for a, b in training.batches((x, x[:, :4]), batch_size=64):
            optimizer.zero_grad()
            ((model(a) - b) ** 2).mean().backward()
            optimizer.step()
            with open(steps, "a") as file:
                file.write(json.dumps([time.time(), training.rank(), training.size(), os.getpid()]) + "\\n")
            time.sleep(0.02)
            if os.path.exists(stop):
                return
            if state.step % 5 == 0:
                state.commit()

train(state)
"""
# Figure -> how it is called, and what it should be at most with engine torch.
FIGURES = {
    "first": ("submit to first step", "<= 0.1 s"),
    "grow": ("grow 1 to 2: wish to first step", "<= 0.12 s"),
    "grow pause": ("grow 1 to 2: pause", "<= 0.05 s"),
    "shrink": ("shrink 2 to 1: wish to first step", "<= 0.08 s"),
    "shrink pause": ("shrink 2 to 1: pause", "<= 0.05 s"),
    "kill": ("SIGKILL to next step", "<= 0.06 s"),
    "whole": ("SIGKILL to next step of two", ""),
}


def measure(rounds: int) -> list[dict[str, Any]]:
    """Ours and the peers', one after the other in every round; ten rounds at least."""
    rounds = max(rounds, 10)
    native: Found = {}
    torch: Found = {}
    horovod: Found = {}
    keras: Found = {}
    runs = {name: run for name, (module, run) in elastic_peers.RUNS.items() if elastic_peers.installed(module)}
    peers: dict[str, Found] = {name: {} for name in runs}
    with tempfile.TemporaryDirectory() as folder, Pool(Path(folder, "pool"), slots=2) as pool:
        pool.client.ask(wire.SwitchPolicy(name="elastic_fifo", options={"cooldown": 0}))
        for index in range(rounds):
            resized(pool, TORCH, Path(folder, f"torch{index}"), native, kill=True)
            resized(pool, TRAINING, Path(folder, f"distributed{index}"), torch, kill=True, engine="torch")
            resized(pool, TRAINING, Path(folder, f"horovod{index}"), horovod, kill=True)
            resized(pool, KERAS, Path(folder, f"keras{index}"), keras, kill=False)
            for name, run in runs.items():
                try:
                    run(Path(folder, f"{name}{index}"), peers[name])
                except TimeoutError as error:
                    print(f"  the rest of a round of {name} is left out: {error}", flush=True)
    rows = [
        *_rows("hvd.elastic.run", native, "torchrun", peers.get("torchrun", {})),
        *_rows("training, engine torch", torch, "engine horovod", horovod),
    ]
    for name, found in peers.items():
        rows += _rows("training, engine torch", torch, name, found)
    return [
        *rows,
        row("TensorFlow grow 1 to 2: pause", "s", keras["grow pause"], [], "", "<= 0.3 s"),
        row("TensorFlow grow 1 to 2: wish to first step", "s", keras["grow"], [], "", ""),
        row("TensorFlow shrink 2 to 1: wish to first step", "s", keras["shrink"], [], "", ""),
    ]


def _rows(what: str, ours: Found, name: str, peer: Found) -> list[dict[str, Any]]:
    """A row for each figure that both have."""
    return [
        row(f"{what} beside {name}: {figure}", "s", ours[key], peer[key], name, goal)
        for key, (figure, goal) in FIGURES.items()
        if key in ours and key in peer
    ]


def resized(
    pool: Pool,
    source: str,
    folder: Path,
    found: Found,
    *,
    kill: bool,
    engine: str = "horovod",
    first_only: bool = False,
) -> None:
    """Run a job of ours that begins on one slot, and measure (`first_only`: no more than) what its changes take."""
    folder.mkdir()
    steps, stop = Steps(folder / "steps"), folder / "stop"
    names = {"steps": str(steps.path), "stop": str(stop)}
    begun = time.time()
    job = pool.submit(source, slots=(1, 1), engine=engine, names=names)
    found.setdefault("first", []).append(steps.first(lambda step: step[2] == 1)[0] - begun)

    def resize(slots: int) -> tuple[float, list[float]]:
        time.sleep(1.0)
        begun = time.time()
        members = {step[3] for step in steps.all()}  # a newcomer takes a private first step before it joins
        pool.client.ask(wire.ResizeJob(job=job, min_slots=slots, max_slots=slots))
        return begun, steps.first(lambda step: step[0] > begun and step[2] == slots and step[3] in members)

    for what, slots in () if first_only else (("grow", 2), ("shrink", 1), ("grow", 2)):
        begun, step = resize(slots)
        found.setdefault(what, []).append(step[0] - begun)
        found.setdefault(f"{what} pause", []).append(steps.pause(step[0], step[3]))
    if kill:
        pool.client.ask(wire.ResizeJob(job=job, min_slots=1, max_slots=2))
        steps.kill(found)
    stop.touch()
    pool.ended(job)
