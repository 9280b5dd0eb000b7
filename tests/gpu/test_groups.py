"""Groups on GPUs, by NCCL, of both engines: they grow, shrink, and go on after deaths in the midst of a collective."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.driver.engine import Engine
from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process
from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from tests.live.engine.bench import NOTE, TORCH, Bench, asynchronous, check_training, needs

BOTH = [pytest.param(Torch, id="torch"), pytest.param(Horovod, id="horovod", marks=needs("torch"))]
APART = """
import os
os.environ["NCCL_HOSTID"] = str(os.getpid())
"""
"""For several members on one GPU."""
WIDTH = 1024
MAKE = f"""
import torch
def make(device):
    torch.manual_seed(0)
    first, second, last = torch.nn.Linear(8, {WIDTH}), torch.nn.Linear({WIDTH}, {WIDTH}), torch.nn.Linear({WIDTH}, 1)
    model = torch.nn.Sequential(first, torch.nn.Tanh(), second, last).double().to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x = torch.linspace(-1, 1, 512, dtype=torch.float64).reshape(64, 8)
"""
TRAINING = (
    NOTE
    + APART
    + MAKE
    + """
from jupyter_elastic import training
from jupyter_elastic.training.context import context
model, optimizer = make(device)
assert next(model.parameters()).is_cuda and torch.cuda.device_count() == 1, os.environ["CUDA_VISIBLE_DEVICES"]
state = training.State(model=model, optimizer=optimizer, enough=False)

@training.run
def train(state):
    net = WRAP
    for state.epoch in state.epochs(100_000):
        if state.enough:
            break
        for inputs, in training.batches((x,), batch_size=64, shuffle=False):
            optimizer.zero_grad()
            net(inputs.to(device)).pow(2).mean().backward()
            optimizer.step()
            if not context.warming_up:
                note(step=state.step, rank=training.rank(), size=training.size())
            time.sleep(0.02)
        state.enough = training.agree(stopped())
        state.commit()

train(state)
steps, weights = state.step, [float(p.detach().sum()) for p in model.parameters()]
"""
)


class GpuBench(Bench):
    """A bench whose slots have GPUs, in turn: several have the same one where there are fewer."""

    def __init__(self, gpus: Sequence[str], engine: type[Engine], folder: Path, source: str, **given: Any) -> None:
        super().__init__(engine, folder, source, **given)
        self._gpus, self._numbers = gpus, itertools.count()
        self._devices: dict[str, str] = {}

    def _given(self, slots: Iterable[str]) -> dict[str, str]:
        for slot in slots:
            if slot not in self._devices:
                self._devices[slot] = self._gpus[next(self._numbers) % len(self._gpus)]
        return {slot: self._devices[slot] for slot in slots}

    async def launch(self, *slots: str) -> None:
        self.generation += 1
        await self.engine.launch(self.generation, slots, self._given(slots))

    async def rescale(self, *slots: str) -> None:
        self.generation += 1
        await self.engine.rescale(self.generation, slots, self._given(slots))


def first_step(bench: Bench, after: float) -> dict[str, Any] | None:
    return next((step for step in bench.steps() if step["at"] > after), None)


def alone(steps: int) -> list[float]:
    """The weights' sums of a training of one process on the CPU."""
    import torch

    names: dict[str, object] = {}
    exec(MAKE, names)
    model, optimizer = names["make"]("cpu")  # type: ignore[operator]
    x = names["x"]
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    assert not torch.cuda.is_initialized()
    return [float(p.detach().sum()) for p in model.parameters()]


HOSTS = (HostAddress(name="b", url="exec:"), HostAddress(name="c", url="exec:"))
HERE, ON_THREE = ("h:0", "h:1", "h:2"), ("h:0", "b:0", "c:0")


@pytest.mark.parametrize(
    ("engine", "wrap", "slots"),
    [
        pytest.param(Torch, "model", HERE, id="torch"),
        pytest.param(Torch, "training.wrap(model)", HERE, id="torch-wrapped"),
        pytest.param(Torch, "model", ON_THREE, id="torch-hosts"),
        pytest.param(Horovod, "model", HERE, id="horovod", marks=needs("torch")),
        pytest.param(Horovod, "model", ON_THREE, id="horovod-hosts", marks=needs("torch")),
    ],
)
@asynchronous
async def test_trains_as_one_process_through_growth_deaths_and_shrinking(
    folder: Path,
    gpus: tuple[str, ...],
    engine: type[Engine],
    wrap: str,
    slots: tuple[str, ...],
    record_property: Callable[[str, Any], None],
) -> None:
    source = TRAINING.replace("WRAP", wrap)
    async with GpuBench(gpus, engine, folder, source, out=("steps", "weights"), hosts=HOSTS) as bench:
        begun = time.time()
        await bench.launch(slots[0])
        first = await bench.step_at(1)
        record_property("submit_s", first["at"] - begun)
        for size in (2, 3):
            await bench.rescale(*slots[:size])
            await bench.step_at(size)
            record_property(f"grow_{size}_s", (await bench.running()).pause_s)
        for rank in (2, 0, 1):
            await bench.step_at(3, time.time())
            killed = time.time()
            bench.kill(rank)
            after = await bench.until(functools.partial(first_step, bench, killed + 0.05))
            record_property(f"kill_{rank}_s", after["at"] - killed)
        await bench.step_at(3, time.time())
        await bench.rescale(slots[1])
        record_property("shrink_s", (await bench.running()).pause_s)
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()
        (result,) = bench.results().values()
        steps = {step["step"] for step in bench.steps()}
        assert steps == set(range(1, result["steps"] + 1)), bench.story()
        assert result["weights"] == pytest.approx(alone(result["steps"]), rel=1e-9, abs=1e-9)


HOROVODS_OWN = APART + (
    TORCH.replace("Linear(32, 4)", "Linear(32, 4).to(device)")
    .replace("generator=g)", "generator=g).to(device)")
    .replace("[float(stopped())])", "[float(stopped())], device=device)")
    .replace("torch.randn(64, 32))", "torch.randn(64, 32).to(device))")
)


@needs("torch")
@asynchronous
async def test_horovods_own_elastic_loop_by_nccl(folder: Path, gpus: tuple[str, ...]) -> None:
    async with GpuBench(gpus, Horovod, folder, HOROVODS_OWN, out=("steps", "weights")) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await bench.step_at(2)
        for rank in (1, 0):
            await bench.step_at(2, time.time())
            bench.kill(rank)
            await bench.step_at(2, time.time() + 0.05)
        await bench.rescale("h:1")
        await bench.running()
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()
        check_training(bench)


DDP = (
    APART
    + """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.cuda.set_device(0)
dist.init_process_group("nccl")
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(8, 4).cuda(), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for step in range(20):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.randn(16, 8, device="cuda")).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
weights = [round(float(p.double().sum()), 9) for p in model.parameters()]
size = dist.get_world_size()
dist.destroy_process_group()
"""
)


@pytest.mark.parametrize("engine", [Torch, Process])
@asynchronous
async def test_a_script_for_torchrun_by_nccl(folder: Path, gpus: tuple[str, ...], engine: type[Engine]) -> None:
    async with GpuBench(gpus, engine, folder, DDP, out=("weights", "size")) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        first, second = bench.results().values()
        assert first == second
        assert first["size"] == 2


MIXED = (
    NOTE
    + APART
    + """
import torch
from jupyter_elastic import training
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda")
state = training.State(model=model, optimizer=optimizer, scaler=scaler)
x = torch.linspace(-1, 1, 512).reshape(64, 8)
@training.run
def train(state):
    for state.epoch in state.epochs(100_000):
        for inputs, in training.batches((x,), batch_size=16):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(inputs.to(device)).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            note(step=state.step, size=training.size())
            state.commit()
        if training.agree(stopped()):
            break
train(state)
steps, weights = state.step, float(sum(p.double().sum() for p in model.parameters()))
"""
)


@pytest.mark.parametrize("engine", BOTH)
@asynchronous
async def test_mixed_precision_grows_and_goes_on_after_a_death(
    folder: Path, gpus: tuple[str, ...], engine: type[Engine]
) -> None:
    async with GpuBench(gpus, engine, folder, MIXED, out=("steps", "weights")) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await bench.step_at(2)
        bench.kill(1)
        await bench.step_at(2, time.time() + 0.05)
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert len({(found["steps"], found["weights"]) for found in bench.results().values()}) == 1


LOGICAL = (
    APART
    + """
import torch
from jupyter_elastic import training
torch.use_deterministic_algorithms(True, warn_only=True)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = training.State(model=model, optimizer=optimizer, logical_workers=2)
x = torch.linspace(-1, 1, 512).reshape(64, 8)
@training.run
def train(state):
    for state.epoch in state.epochs(3):
        for inputs, in training.batches((x,), batch_size=16):
            optimizer.zero_grad()
            model(inputs.to(device)).pow(2).mean().backward()
            optimizer.step()
train(state)
weights = [p.detach().cpu().numpy().tobytes() for p in model.parameters()]
"""
)


@asynchronous
async def test_logical_workers_are_the_same_bit_for_bit_on_one_and_on_two(folder: Path, gpus: tuple[str, ...]) -> None:
    found = []
    for size in (1, 2):
        async with GpuBench(gpus, Torch, folder / str(size), LOGICAL, out=("weights",)) as bench:
            await bench.launch(*HERE[:size])
            assert (await bench.ended()).outcome == "completed", bench.story()
            found += bench.results().values()
    assert found[0] == found[1] == found[2]


SHARDED = (
    NOTE
    + APART
    + """
import torch
from torch.distributed.fsdp import fully_shard
from jupyter_elastic import training
def make(mesh):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.01)}
state = training.State(factory=make)
x = torch.linspace(-1, 1, 512).reshape(64, 8)
@training.run
def train(state):
    for state.epoch in state.epochs(100_000):
        for inputs, in training.batches((x,), batch_size=16):
            state.optimizer.zero_grad()
            state.model(inputs.to(device)).pow(2).mean().backward()
            state.optimizer.step()
            note(step=state.step, size=training.size())
        state.commit()
        if training.agree(stopped()):
            break
    return [float(p.full_tensor().double().sum()) for p in state.model.parameters()]
weights = train(state)
"""
)


@asynchronous
async def test_a_sharded_model_grows_and_goes_on_after_a_death(folder: Path, gpus: tuple[str, ...]) -> None:
    async with GpuBench(gpus, Torch, folder, SHARDED, out=("weights",)) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        await bench.rescale("h:0", "h:1", "h:2")
        await bench.step_at(3)
        bench.kill(1)
        await bench.step_at(3, time.time() + 0.05)
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert len({tuple(found["weights"]) for found in bench.results().values()}) == 1
