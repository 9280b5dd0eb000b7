"""What would train a model on each worker without a word is refused, or said."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_elastic.engines.process import Process
from jupyter_elastic.engines.torch_distributed.driver import Torch
from tests.live.engine import torch_cells
from tests.live.engine.bench import Bench, asynchronous, needs

LOOP = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
TAPE = """
import tensorflow as tf, {keras}
optimizer = {keras}.optimizers.SGD(0.1)
w = tf.Variable(1.0)
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = w * w
    optimizer.apply_gradients([(tape.gradient(loss, w), w)])
    return loss
print(round(float(step()), 2), round(float(step()), 2))
"""
LOOPS = {"torch": LOOP, "keras": TAPE.format(keras="keras"), "tf_keras": TAPE.format(keras="tf_keras")}
NOTE = "note: each of the 2 workers trains a model of its own here."
REFUSED = {
    "torch": ("import torch\ntorch.nn.DataParallel(torch.nn.Linear(4, 1))", "DistributedDataParallel"),
    "tensorflow": ("import tensorflow as tf\ntf.distribute.MirroredStrategy()", "MultiWorkerMirroredStrategy"),
}


@pytest.mark.parametrize("library", [pytest.param(name, marks=needs(name)) for name in REFUSED])
@asynchronous
async def test_what_uses_the_devices_of_one_process_is_refused_with_several_workers(folder: Path, library: str) -> None:
    source, instead = REFUSED[library]
    async with Bench(Process, folder, source) as bench:
        await bench.launch("h:0", "h:1")
        ended = await bench.ended()
        assert ended.outcome == "failed"
        assert "this job has 2 workers with a device each: each would train a model of its own. Take " in ended.reason
        assert instead in ended.reason


@pytest.mark.parametrize(
    "library", [pytest.param(name, marks=needs("torch" if name == "torch" else "tensorflow")) for name in LOOPS]
)
@asynchronous
async def test_a_plain_loop_on_several_workers_is_said_once(folder: Path, library: str) -> None:
    async with Bench(Process, folder, LOOPS[library]) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert [bench.text(rank, "stderr").count(NOTE) for rank in (0, 1)] == [1, 0]


@pytest.mark.parametrize(("source", "slots"), [(LOOP, ["h:0"]), (torch_cells.DDP, ["h:0", "h:1"])], ids=["one", "ddp"])
@needs("torch")
@asynchronous
async def test_nothing_is_said_of_one_worker_or_of_a_group(folder: Path, source: str, slots: list[str]) -> None:
    async with Bench(Torch, folder, source) as bench:
        await bench.launch(*slots)
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert "note:" not in bench.text(0, "stderr")
