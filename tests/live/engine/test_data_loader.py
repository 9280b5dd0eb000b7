"""A DataLoader's own worker process is killed in the middle of an epoch: that rank's error ends the job at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_elastic.engines.torch.driver import Torch
from tests.live.engine.bench import NOTE, Bench, asynchronous

pytest.importorskip("torch")

_LOADER = (
    NOTE
    + """
import signal, torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, index):
        if index == 200 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((4,), index / 4000)
loader = DataLoader(Numbers(), batch_size=4, num_workers=2)
model = torch.nn.Linear(4, 1)
"""
)
TRAINING = (
    _LOADER
    + """
from jupyter_elastic import training
state = training.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
@training.run
def train(state):
    for x in loader:
        state.optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        state.optimizer.step()
        note(rank=training.rank())
    state.commit()
train(state)
"""
)
NATIVE = (
    _LOADER
    + """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
together = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    together(x).pow(2).mean().backward()
    optimizer.step()
    note(rank=rank)
"""
)


@pytest.mark.parametrize("source", [TRAINING, NATIVE], ids=["training.run", "DDP"])
@asynchronous
async def test_its_error_is_the_jobs(folder: Path, source: str) -> None:
    async with Bench(Torch, folder, source) as bench:
        await bench.launch("h:0", "h:1")
        seen = await bench.ended()
        assert seen.outcome == "failed", bench.story()
        assert seen.reason.startswith("rank 1: RuntimeError: DataLoader worker (pid"), bench.story()
        assert sorted({step["rank"] for step in bench.steps()}) == [0, 1]
