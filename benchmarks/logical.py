"""What fixed logical workers cost: time of a training step with four of them, and without, on both engines.

Models of one square layer (0.1, 5 and 25 million parameters), a batch of 16 samples, one thread for each process.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import row
from tests.support.pool import Pool

WIDTHS = {"0.1 M": 316, "5 M": 2236, "25 M": 5000}
CELL = """
import json, time
import torch
from jupyter_elastic import training

model = torch.nn.Linear(width, width)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
state = training.State(model=model, optimizer=optimizer, logical_workers=workers)
x, seconds = torch.randn(16 * 8, width), []

@training.run
def train(state):
    begun, step = time.perf_counter(), state.step
    for batch in training.batches(x, 16):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if state.step > step:
            now, step = time.perf_counter(), state.step
            seconds.append(now - begun)
            begun = now

train(state)
if training.rank() == 0:
    with open(path, "w") as file:
        json.dump(seconds[2:], file)
"""


def measure(rounds: int) -> list[dict[str, Any]]:
    """Rows for each engine, number of processes and model."""
    found = []
    with tempfile.TemporaryDirectory() as folder, Pool(Path(folder, "pool"), slots=3) as pool:
        path = Path(folder, "seconds")

        def seconds(engine: str, processes: int, width: int, workers: int | None) -> list[float]:
            names = {"width": width, "workers": workers, "path": str(path)}
            job = pool.submit(CELL, slots=(processes, processes), engine=engine, names=names)
            assert pool.ended(job).outcome == "completed"
            steps: list[float] = json.loads(path.read_text())
            return steps

        for engine in ("horovod", "torch"):
            for processes in (2, 3):
                for name, width in WIDTHS.items():
                    ours: list[float] = []
                    peer: list[float] = []
                    for _ in range(rounds):
                        ours += seconds(engine, processes, width, 4)
                        peer += seconds(engine, processes, width, None)
                    what = f"step, {name} parameters, 4 logical on {processes} ({engine})"
                    found.append(row(what, "s", ours, peer, "without logical workers"))
    return found
