"""A model that is sharded over the group (FSDP2): each change keeps its bits, and it learns what one worker learns."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.jobfiles.commits import Commits
from tests.live.engine.bench import NOTE, Bench, asynchronous

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.fsdp")
EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))

CELL = (
    NOTE
    + """
import hashlib, signal
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from jupyter_elastic import training
from jupyter_elastic.training.context import context
BEFORE

SAMPLES, EPOCHS, nn = 46, 12, torch.nn

def make(mesh=None):
    model = nn.Sequential(nn.Linear(7, 13), nn.BatchNorm1d(13), nn.Tanh(), nn.Linear(13, 5), nn.Linear(5, 3))
    if SHARDED:
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return {"model": model.eval(), "optimizer": optimizer, "rate": torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)}

def whole(value):
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().clone() if isinstance(value, torch.Tensor) else value

def content(state):
    moments = state.optimizer.state_dict()["state"]
    return [*map(whole, state.model.state_dict().values()), *(whole(v) for of in moments.values() for v in of.values())]

def digest(state):
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in content(state))).hexdigest()[:16]

g = torch.Generator().manual_seed(1)
x, y = torch.randn(SAMPLES, 7, generator=g), torch.randint(0, 3, (SAMPLES,), generator=g)
torch.manual_seed(2)
options = dict(factory=make) if SHARDED else make()
state = training.State(used=np.zeros((EPOCHS, SAMPLES)), **options)

@training.run
def train(state):
    mine = np.zeros(SAMPLES)
    if not context.warming_up and SHARDED:
        note(begun=digest(state), at_step=state.step, rank=training.rank(), size=0)
    for state.epoch in state.epochs(EPOCHS):
        for inputs, outputs, numbers in training.batches((x, y, torch.arange(SAMPLES)), batch_size=10, **PIECES):
            state.optimizer.zero_grad()
            nn.functional.cross_entropy(state.model(inputs), outputs).backward()
            state.optimizer.step()
            mine[numbers] += context.weight > 0
            if not context.last_micro_batch:
                continue
            state.rate.step()
            used, mine = training.total(mine), np.zeros(SAMPLES)
            state.used = state.used + (np.arange(EPOCHS) == state.epoch)[:, None] * used
            if not context.warming_up:
                note(step=state.step, size=training.size(), rank=training.rank(), digest=digest(state))
            state.commit()
            if not os.path.exists(f"{FOLDER}/hurry"):
                time.sleep(0.02)

train(state)
weights = [t.numpy() for t in content(state)]
once = bool((state.used == 1).all())
steps = state.step
try:
    state.model = nn.Linear(1, 1)
except Exception as problem:
    refused = str(problem)
"""
)
STEPS = 12 * 5


def make(folder: Path, *, sharded: bool = True, before: str = "", pieces: int = 4, **more: Any) -> Bench:
    names = {"SHARDED": sharded, "PIECES": {"micro_batch": pieces}}
    out = ("weights", "once", "steps", "refused")
    return Bench(
        Torch,
        folder,
        CELL.replace("BEFORE", before),
        names=names,
        out=out,
        **more,
    )


def check(bench: Bench, expected: list[Any], *, any_begun: bool = True) -> None:
    """No sample is missing, each group began with bits that one before it had, and the end is that of a plain run."""
    results = list(bench.results().values())
    assert results
    for result in results:
        assert (result["once"], result["steps"]) == (True, STEPS)
        for mine, plain in zip(result["weights"], expected, strict=True):
            assert abs(mine - plain).max() < 1e-4
    had = {(step["step"], step["digest"]) for step in bench.steps() if "digest" in step}
    begun = [(step["at_step"], step["begun"]) for step in bench.steps() if "begun" in step and step["at_step"]]
    assert set(begun) <= had
    assert begun or not any_begun


async def complete(bench: Bench, expected: list[Any], *, any_begun: bool = True) -> None:
    (bench.folder / "hurry").touch()
    assert (await bench.ended()).outcome == "completed", bench.story()
    check(bench, expected, any_begun=any_begun)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What one worker learns that holds the model whole."""
    folder = tmp_path_factory.mktemp("plain") / "job"
    found: list[Any] = []

    @asynchronous
    async def story() -> None:
        async with make(folder, sharded=False) as bench:
            (folder / "hurry").touch()
            await bench.launch("h:0")
            assert (await bench.ended()).outcome == "completed", bench.story()
            found.extend(bench.results()[0]["weights"])

    story()
    return found


@asynchronous
async def test_it_grows_shrinks_and_loses_each_rank(folder: Path, expected: list[Any]) -> None:
    async with make(folder) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1", "h:2")
        await bench.step_at(3)
        for rank in (2, 0):
            killed = time.time()
            bench.kill(rank)
            await bench.step_at(3, killed + 0.01)
        await bench.rescale("h:1", "h:2")
        await bench.step_at(2)
        await complete(bench, expected)
        assert "those that the factory returns" in bench.results()[0]["refused"]
    assert not Commits(folder).shared.parent.exists()


DYING = """
from jupyter_elastic.jobfiles.commits import Commits
def die(point):
    path = f"{FOLDER}/now"
    if os.path.exists(path) and open(path).read() == f"{point} {training.link.current.rank}":
        os.unlink(path)
        os.kill(os.getpid(), signal.SIGKILL)
def at(owner, name):
    real = getattr(owner, name)
    def replaced(*args, **kwargs):
        die(f"before {name}")
        result = real(*args, **kwargs)
        die(f"after {name}")
        return result
    setattr(owner, name, replaced)
at(checkpoint.FileSystemWriter, "write_data")
at(checkpoint.FileSystemWriter, "finish")
at(Commits, "save_shards")
"""
POINTS = ["after finish 0", "after save_shards 0"]
if EVERYTHING:
    POINTS += ["before write_data 2", "after write_data 1", "before save_shards 0"]


@asynchronous
async def test_a_death_in_a_commit_leaves_the_one_before_or_the_new_one(folder: Path, expected: list[Any]) -> None:
    """A member dies with its shards half written, rank 0 before and after the new commit counts."""
    async with make(folder, before=DYING) as bench:
        await bench.launch("h:0", "h:1", "h:2")
        for point in POINTS:
            await bench.step_at(3, time.time())
            (folder / "now.new").write_text(point)
            (folder / "now.new").rename(folder / "now")
            await bench.until(lambda: not (folder / "now").exists())
            died = bench.steps()[-1]["at"]
            begun = await bench.until(functools.partial(begun_after, bench, died))
            last = max(step["step"] for step in bench.steps() if step.get("step") and step["at"] < begun["at"])
            assert begun["at_step"] == last - (point != "after save_shards 0")
        await complete(bench, expected)


def begun_after(bench: Bench, at: float) -> dict[str, Any] | None:
    return next((step for step in bench.steps() if "begun" in step and step["at"] > at), None)


@asynchronous
async def test_another_attempt_goes_on_from_the_disk(folder: Path, expected: list[Any]) -> None:
    async with make(folder) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        killed = time.time()
        bench.kill(0)
        bench.kill(1)  # nobody has the state: it is in shared memory
        await bench.step_at(2, killed + 0.01)
        await bench.engine.stop("preempt")
        assert (await bench.ended()).outcome == "preempted"
        last = max(step["step"] for step in bench.steps() if "step" in step)
    assert not Commits(folder).shared.parent.exists()
    async with make(folder, attempt=2) as bench:
        resumed = time.time()
        await bench.launch("h:3")
        assert (await bench.step_at(1, resumed))["step"] == last + 1
        await complete(bench, expected)


@pytest.mark.skipif(not EVERYTHING, reason="minutes long: set JUPYTER_ELASTIC_TEST_EVERYTHING")
@pytest.mark.parametrize("seed", range(20))
@asynchronous
async def test_any_history_learns_what_one_worker_learns(folder: Path, expected: list[Any], seed: int) -> None:
    chance = random.Random(seed)
    async with make(folder) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        for _ in range(8):
            living = [m.rank for m in bench.engine.members.values() if m.process and m.was_member]
            if len(living) > 1 and chance.random() < 0.5:
                with contextlib.suppress(StopIteration):  # it was gone already
                    bench.kill(chance.choice(living))
            else:
                await bench.rescale(*(f"h:{slot}" for slot in sorted(chance.sample(range(3), chance.randint(1, 3)))))
            await asyncio.sleep(chance.random() * 0.3)
        await complete(bench, expected, any_begun=False)  # all may have died before the first commit
