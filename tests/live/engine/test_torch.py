"""Engine `horovod` with PyTorch and unmodified `hvd.elastic.run`: grow, shrink, deaths, preemption."""

from __future__ import annotations

import asyncio
import functools
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.driver import group_actions
from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.platform import processes
from tests.live.engine.bench import TORCH, Bench, asynchronous, check_training, needs

pytestmark = needs("torch")
OUT = ("steps", "weights")


def first_step(bench: Bench, after: float, up_to: int) -> dict[str, Any] | None:
    return next((s for s in bench.steps() if s["at"] > after and s["step"] <= up_to), None)


@asynchronous
async def test_grows_and_shrinks(folder: Path) -> None:
    async with Bench(Horovod, folder, TORCH + "print('rank', rank, 'of', world_size)", out=OUT) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await bench.step_at(2)
        grown = await bench.running()
        assert grown.slots == ("h:0", "h:1")
        assert 0 < grown.pause_s < 30
        await bench.rescale("h:1")  # not the newest goes, but the one that holds rank 0
        shrunk = await bench.running()
        assert shrunk.slots == ("h:1",)
        await bench.step_at(1, time.time())
        await bench.until(lambda: bench.released == ["h:0"])
        bench.finish()
        assert (await bench.ended()).outcome == "completed"
        assert bench.released == ["h:0", "h:1"]
        assert list(bench.results()) == [0]
        check_training(bench)
        assert bench.text(0) == "rank 0 of 1\n"
        assert not Commits(folder).shared.exists()


@asynchronous
async def test_survivors_go_on_when_a_worker_is_killed(folder: Path) -> None:
    async with Bench(Horovod, folder, TORCH, out=OUT) as bench:
        await bench.launch("h:0", "h:1")
        for rank in (1, 0):
            await bench.step_at(2, time.time())
            await bench.until(lambda: (folder / "commit").exists() or Commits(folder).load())
            before = max(step["step"] for step in bench.steps())
            killed = time.time()
            bench.kill(rank)
            first = await bench.until(functools.partial(first_step, bench, killed, before + 1))
            assert before - first["step"] <= 6
            await bench.step_at(2, time.time())  # the slot has a new worker
        bench.finish()
        assert (await bench.ended()).outcome == "completed"
        check_training(bench)
        assert sorted(bench.released) == ["h:0", "h:1"]


@asynchronous
async def test_a_death_and_its_replacement_are_reported(folder: Path) -> None:
    cell = TORCH.replace("        note(", "        report(step=state.step)\n        note(")
    async with Bench(Horovod, folder, "from jupyter_elastic.training import report\n" + cell, out=OUT) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2, time.time())
        await bench.until(lambda: bench.of("ProgressReported"))
        bench.kill(1)
        (back,) = await bench.until(lambda: bench.of("ReplacementReported"))
        (death,) = bench.of("DeathReported")
        assert (death.rank, death.slot, death.cause, death.count) == (1, "h:1", "was killed by SIGKILL", 1)
        assert death.step > 0
        assert (back.rank, back.slot) == (1, "h:1")
        assert 0 < back.after_s < 30
        await bench.rescale("h:0")  # who is told to leave did not die
        await bench.until(lambda: bench.released == ["h:1"])
        bench.finish()
        assert (await bench.ended()).outcome == "completed"
        assert len(bench.of("DeathReported")) == 1


@asynchronous
async def test_two_changes_ten_milliseconds_apart(folder: Path) -> None:
    async with Bench(Horovod, folder, TORCH, out=OUT) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await asyncio.sleep(0.01)
        await bench.rescale("h:0", "h:1", "h:2")
        await bench.step_at(3)
        assert (await bench.running()).generation == 3
        bench.finish()
        assert (await bench.ended()).outcome == "completed"
        check_training(bench)


@asynchronous
async def test_preempted_job_goes_on_from_its_commit(folder: Path) -> None:
    async with Bench(Horovod, folder, TORCH, out=OUT) as bench:
        await bench.launch("h:0", "h:1")
        await bench.until(lambda: any(step["step"] > 12 for step in bench.steps()))
        await bench.engine.stop("preempt")
        await bench.engine.stop("preempt")
        assert (await bench.ended()).outcome == "preempted"
        assert sorted(bench.released) == ["h:0", "h:1"]
        last = max(step["step"] for step in bench.steps())
    assert not Commits(folder).shared.exists()
    async with Bench(Horovod, folder, TORCH, out=OUT, attempt=2) as bench:
        resumed = time.time()
        await bench.launch("h:3")
        assert (await bench.step_at(1, resumed))["step"] == last + 1  # members save at the door: nothing is lost
        bench.finish()
        assert (await bench.ended()).outcome == "completed"
        check_training(bench)


@asynchronous
async def test_all_members_die(folder: Path) -> None:
    async with Bench(Horovod, folder, TORCH, out=OUT) as bench:
        await bench.launch("h:0", "h:1")
        await bench.until(lambda: any(step["step"] > 12 for step in bench.steps()))
        killed = time.time()
        for process in bench.engine.pids():
            processes.send(process, signal.SIGKILL)
        again = await bench.step_at(2, killed + 0.1)
        assert again["step"] > 10  # the commit of step 10, at least, outlived them
        bench.finish()
        assert (await bench.ended()).outcome == "completed"
        check_training(bench)


@asynchronous
async def test_death_in_a_join_comes_back_from_the_commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newcomer dies between `go` and the end of its `hvd.init()`: the others can't form that ring."""
    async with Bench(Horovod, folder, TORCH, out=OUT) as bench:
        await bench.launch("h:0", "h:1")
        await bench.until(lambda: any(step["step"] > 12 for step in bench.steps()))
        killed: list[str] = []
        perform = bench.engine.perform

        def stab(action: Any) -> None:
            perform(action)
            if isinstance(action, group_actions.FormGroup) and len(action.members) == 3 and not killed:
                killed.append(action.members[-1])
                bench.engine.attempt.workers.kill(action.members[-1])
                bench.engine.members[action.members[-1]].terminating = False

        monkeypatch.setattr(bench.engine, "perform", stab)
        await bench.rescale("h:0", "h:1", "h:2")
        step = await bench.step_at(3)
        assert killed
        assert step["step"] > 10
        bench.finish()
        assert (await bench.ended()).outcome == "completed"
        check_training(bench)


KINDS = """
import torch
from jupyter_elastic import training
from jupyter_elastic.training.ranks import choose

KINDS = ("complex64", "complex128", "float64", "bfloat16")

def made(kind):
    torch.manual_seed(3)
    dtype = getattr(torch, kind)
    net, embedding = torch.nn.Linear(4, 1, dtype=dtype), torch.nn.Embedding(5, 1, sparse=True)
    both = [*net.parameters(), *embedding.parameters()]
    return {"net": net, "embedding": embedding, "optimizer": torch.optim.SGD(both, lr=0.05)}

def step(net, embedding, optimizer, numbers):
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(12, width, dtype=net.weight.dtype, generator=generator)[numbers] for width in (4, 1))
    optimizer.zero_grad()
    (net(x) + embedding(numbers % 5) - y).abs().pow(2).mean().backward()
    optimizer.step()

def weights(parts):
    return [v for part in parts.values() if hasattr(part, "parameters") for p in part.parameters()
            for v in p.detach().reshape(-1).tolist()]

@training.run
def fit(state):
    for state.epoch in state.epochs(3):
        for numbers in training.batches(torch.arange(12), 12):
            for parts in together.values():
                step(**parts, numbers=numbers)

together = {kind: made(kind) for kind in KINDS}
fit(training.State(**{f"{name}_{kind}": part for kind, parts in together.items() for name, part in parts.items()}))
found = {kind: weights(parts) for kind, parts in together.items()}
expected = {}
for kind in KINDS:
    alone = made(kind)
    for _ in range(3):
        step(**alone, numbers=torch.arange(12))
    expected[kind] = weights(alone)

def total(tensor):
    try:
        return choose("torch").allreduce([tensor], name="own")[0].to(torch.float64).tolist()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"

sums = {
    kind: total(torch.ones(2).to(getattr(torch, kind)))
    for kind in ("float8_e4m3fn", "int64", "uint16", "uint64", "bool")
}
sums["sparse"] = total(torch.ones(2, 2).to_sparse())
sums["conjugate"] = torch.view_as_real(
    choose("torch").allreduce([torch.full((2,), 1 + 2j).conj()], name="conjugate")[0]
).tolist()
"""


@asynchronous
async def test_what_horovod_can_not_add_up_goes_as_what_it_can_or_is_refused(folder: Path) -> None:
    async with Bench(Horovod, folder, KINDS, out=("found", "expected", "sums")) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        one, other = bench.results()[0], bench.results()[1]
        assert one == other
        for kind, weights in one["found"].items():
            assert weights == pytest.approx(one["expected"][kind], rel=0.05 if kind == "bfloat16" else 1e-5), kind
        sums = one["sums"]
        assert sums["float8_e4m3fn"] == sums["int64"] == [2, 2]
        assert sums["conjugate"] == [[2, -4], [2, -4]]
        for kind in ("uint16", "uint64", "bool", "sparse"):
            assert sums[kind].startswith("EngineError: Horovod can't add up tensors of "), kind
            assert "--engine torch" in sums[kind]
