"""Shares by speed on shared data, for real: two workers, one half as fast, the same global batch; both engines' rings.

Each sample costs a worker a time of its own. The same training of the digits runs with equal shares and with
`balance="auto"`, measuring the speeds included. The losses must be those of the same learning curve.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import row
from jupyter_elastic.driver.engine import Engine
from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from tests.live.engine.bench import Bench

EPOCHS, BATCH = 6, 64
SPEEDS = (300.0, 150.0)
"""Samples/s of the two workers, beside what the model itself takes."""
CELL = """
import os, time
import torch
from jupyter_elastic import training

speed = speeds[int(os.environ["LOCAL_RANK"])]
torch.manual_seed(seed)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = training.State(model=model, optimizer=optimizer)
losses, at = [], {}

@training.run
def train(state):
    at["begun"] = time.time()
    for state.epoch in state.epochs(epochs):
        epoch_loss = 0.0
        for images, labels in training.batches((x, y), batch, seed=seed, balance=balance):
            time.sleep(len(images) / speed)
            loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(images)), torch.from_numpy(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch_loss += float(loss.detach()) * len(images)
        losses.append(training.total(epoch_loss) / len(x))
    at["ended"] = time.time()

train(state)
found = {"seconds": at["ended"] - at["begun"], "losses": losses}
"""


def trained(folder: Path, names: dict[str, Any], engine: type[Engine]) -> dict[str, Any]:
    """What rank 0 found in a training."""

    async def story() -> dict[str, Any]:
        async with Bench(engine, folder, CELL, names=names, out=("found",)) as bench:
            await bench.launch("h:0", "h:1")
            assert (await bench.ended(600)).outcome == "completed", bench.story()
            found: dict[str, Any] = bench.results()[0]["found"]
            return found

    return asyncio.run(story())


def measure(rounds: int) -> list[dict[str, Any]]:
    """Rows of time and of the greatest difference between the losses of an epoch."""
    return [one for engine in (Torch, Horovod) for one in _measured(engine, rounds)]


def _measured(engine: type[Engine], rounds: int) -> list[dict[str, Any]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    names = {"x": (digits.data / 16).astype("float32"), "y": digits.target, "epochs": EPOCHS, "batch": BATCH}
    names["speeds"] = SPEEDS
    seconds: dict[str, list[float]] = {"none": [], "auto": []}
    off: list[float] = []
    for seed in range(rounds):
        losses = []
        for balance in ("none", "auto"):
            with tempfile.TemporaryDirectory() as place:
                found = trained(Path(place, "job"), {**names, "seed": seed, "balance": balance}, engine)
            seconds[balance].append(found["seconds"])
            losses.append(np.array(found["losses"]))
        off.append(float(np.abs(losses[1] / losses[0] - 1).max()))
        print(f"  none {seconds['none'][-1]:.1f} s, auto {seconds['auto'][-1]:.1f} s, losses {losses}", flush=True)
    kind = engine.name
    return [
        row(f"2 workers, one half as fast, {kind}", "s", seconds["auto"], seconds["none"], "equal", "ratio <= 0.8"),
        row(f"epoch's loss beside equal shares, {kind}", "share", off, [], "", "within 0.01"),
    ]
