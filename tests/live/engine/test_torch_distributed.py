"""Engine `torch`: groups of `torch.distributed` through deaths at every point, and what a cell may do in them."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.engines.torch.worker import TorchWorker
from jupyter_elastic.platform import processes
from jupyter_elastic.types.errors import EngineError
from tests.live.engine.bench import NOTE, Bench, asynchronous

pytest.importorskip("torch")
EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))

LOOP = """
import gc, signal, threading
import torch
import torch.distributed as dist
from jupyter_elastic import training
from jupyter_elastic.engines.torch import group, store_client
from jupyter_elastic.training.context import context

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x = torch.linspace(-1, 1, 512).reshape(64, 8)
state = training.State(model=model, optimizer=optimizer, enough=False)
BEFORE

@training.run
def train(state):
    net = model
    BEGIN
    for state.epoch in state.epochs(100_000):
        if state.enough:
            break
        for inputs, in training.batches((x,), batch_size=16):
            optimizer.zero_grad()
            net(inputs).pow(2).mean().backward()
            STEP
            optimizer.step()
            if not context.warming_up:
                note(step=state.step, rank=training.rank(), size=training.size(), **more())
            time.sleep(0.002)
            state.commit()
        state.enough = training.agree(stopped())
        state.commit()

train(state)
steps, weights = state.step, float(sum(p.double().sum() for p in model.parameters()))
"""


def cell(*, before: str = "", begin: str = "pass", step: str = "pass", more: str = "{}") -> str:
    """The loop with lines of a test in it."""
    changed = LOOP.replace("BEFORE", before).replace("BEGIN", begin).replace("STEP", step)
    return NOTE + "more = lambda: " + more + "\n" + changed


def make(folder: Path, *, min_slots: int = 1, **lines: str) -> Bench:
    return Bench(Torch, folder, cell(**lines), out=("steps", "weights"), min_slots=min_slots)


async def complete(bench: Bench) -> None:
    """Let it end; all ranks came to the same, and no step is missing."""
    bench.finish()
    assert (await bench.ended()).outcome == "completed", bench.story()
    steps = {step["step"] for step in bench.steps()}
    assert steps == set(range(1, max(steps) + 1))
    assert len({(found["steps"], found["weights"]) for found in bench.results().values()}) == 1


async def failed(folder: Path, **lines: str) -> str:
    """The reason why two workers' job failed."""
    async with make(folder, **lines) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "failed", bench.story()
        return bench.exit.reason


@asynchronous
async def test_each_of_four_dies_and_none_waits_for_who_waits(folder: Path) -> None:
    """The time-out is half an hour: a survivor that is not the dead one's neighbour would wait so long."""
    async with make(folder) as bench:
        await bench.launch("h:0", "h:1", "h:2", "h:3")
        for rank in (3, 1, 0):
            await bench.step_at(4, time.time())
            killed = time.time()
            bench.kill(rank)
            await bench.step_at(4, killed + 0.01)
        await complete(bench)


HANG = """
import os, pathlib
once = pathlib.Path(FOLDER, "held")
in_torch = {"os": os}
exec(compile("def wait(): os.read(os.pipe()[0], 1)", "/site-packages/torch/distributed/held.py", "exec"), in_torch)

def hang(state):
    if training.rank() == 2 and state.step == 5 and not once.exists():
        once.touch()
        in_torch["wait"]()
"""


@asynchronous
async def test_a_survivor_that_no_closed_connection_frees_is_replaced(folder: Path) -> None:
    """Gloo forgets who waits for a message of which the head has arrived and the rest will not."""
    async with make(folder, before=HANG, step="hang(state)") as bench:
        await bench.launch("h:0", "h:1", "h:2")
        await bench.until((folder / "held").exists)
        bench.kill(1)
        await bench.until(lambda: any("hung in a collective" in death.cause for death in bench.of("DeathReported")))
        await bench.step_at(3, time.time())
        await complete(bench)


POINTS = {
    "before the store": "group.GroupStore.__init__",
    "in the store": "group.GroupStore.set",
    "after init": "dist.init_process_group",
    "in sync": "group.TorchGroup.broadcast",
}
AT = """
def at(real, before):
    def replaced(*args, **kwargs):
        now = os.path.exists(f"{FOLDER}/now") and training.link.current.rank == RANK
        now = now and context.group is not None and not context.warming_up
        if now and not before:
            real(*args, **kwargs)
        if now:
            os.unlink(f"{FOLDER}/now")
            os.kill(os.getpid(), signal.SIGNAL)
        return real(*args, **kwargs)
    return replaced
POINT = at(POINT, AHEAD)
"""
SHORT_JOIN = "import datetime\ngroup.JOIN = datetime.timedelta(seconds=1)\n"


def at(point: str, rank: int, number: str) -> str:
    """Lines by which that rank gets the signal at a point of its next join."""
    lines = AT.replace("POINT", POINTS[point]).replace("AHEAD", str(point != "after init"))
    return lines.replace("RANK", str(rank)).replace("SIGNAL", number)


@pytest.mark.parametrize("point", POINTS)
@asynchronous
async def test_a_newcomer_dies_in_its_join(folder: Path, point: str) -> None:
    """The survivors wait for the next one: their torch has counted a group that it has not."""
    async with make(folder, min_slots=3, before=at(point, 2, "SIGKILL")) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        (folder / "now").touch()
        await bench.rescale("h:0", "h:1", "h:2")
        await bench.until(lambda: not (folder / "now").exists())
        await bench.step_at(3)
        assert len(bench.of("DeathReported")) == 1  # no join has failed since
        await complete(bench)


@asynchronous
async def test_a_newcomer_that_stands_still_in_its_join_is_ended(folder: Path) -> None:
    async with make(folder, before=SHORT_JOIN + at("in the store", 2, "SIGSTOP")) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        (folder / "now").touch()
        await bench.rescale("h:0", "h:1", "h:2")
        await bench.until(lambda: not (folder / "now").exists())
        await bench.step_at(3)
        await complete(bench)


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("point", POINTS if EVERYTHING else ["in the store", "in sync"])
@asynchronous
async def test_rank_0_dies_or_stands_still_in_a_join(
    folder: Path, point: str, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on from what they had trained, or from the last commit: no step is missing."""
    monkeypatch.setenv("JUPYTER_ELASTIC_WAIT_S", "0.6")
    async with make(folder, before=SHORT_JOIN + at(point, 0, number)) as bench:
        await bench.launch("h:0", "h:1")
        begun = await bench.step_at(2)
        (folder / "now").touch()
        await bench.rescale("h:0", "h:1", "h:2")
        await bench.until(lambda: not (folder / "now").exists())
        (death,) = await bench.until(lambda: bench.of("DeathReported"))
        assert death.rank == 0
        assert (await bench.step_at(3, death.at))["step"] > begun["step"]
        # Gloo may forget a survivor that waits in the broken collective: it is killed then, and replaced too.
        _, *others = bench.of("DeathReported")
        assert point == "in sync" or not others
        assert all("hung in a collective that another worker's death had broken" in one.cause for one in others)
        await complete(bench)


@asynchronous
async def test_the_error_of_a_cell_ends_the_job_with_that_error(folder: Path) -> None:
    begin = "if training.rank() == 1: raise RuntimeError('my own words')"
    assert "my own words" in await failed(folder, begin=begin)


@asynchronous
async def test_an_error_that_looks_like_gloos_is_the_cells_own(folder: Path) -> None:
    before = "from jupyter_elastic.engines.torch import worker\nworker.BROKEN_S = 0.2"
    step = "if state.step == 3 and training.rank() == 1: raise RuntimeError('[../gloo/transport/tcp/pair.cc] mine')"
    assert "pair.cc] mine" in await failed(folder, before=before, step=step)


@asynchronous
async def test_a_group_of_the_cells_own_is_refused_in_words(folder: Path) -> None:
    before = "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
    assert "leave the call out" in await failed(folder, before=before)


@asynchronous
async def test_a_cell_that_catches_every_exception_lets_a_planned_change_through(folder: Path) -> None:
    source = cell().replace(
        "            state.commit()\n", "            try: state.commit()\n            except Exception: pass\n", 1
    )
    async with Bench(Torch, folder, source, out=("steps", "weights")) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await bench.step_at(2)
        begun = time.time()
        await bench.rescale("h:1")
        await bench.step_at(1, begun)
        await complete(bench)


GROUPS = """
if not context.warming_up:
    others = dist.new_group(list(range(dist.get_world_size())))
    named = [None] * dist.get_world_size()
    dist.all_gather_object(named, training.rank(), group=others)
    assert named == list(range(training.size())), named
    ones = torch.ones(1)
    dist.all_reduce(ones, group=others)
    assert ones.item() == training.size()
""".strip().replace("\n", "\n    ")
DDP = {
    "plain": "net = training.wrap(model)",
    "static": "net = training.wrap(model, static_graph=True)",
    "unused": "net = training.wrap(model, find_unused_parameters=True)",
}


@pytest.mark.parametrize("way", DDP)
@asynchronous
async def test_subgroups_objects_and_ddp_in_each_of_three_generations(folder: Path, way: str) -> None:
    step = "assert context.added_up == set(model.parameters()), 'not added up during backward'"
    async with make(folder, begin=f"{GROUPS}\n    {DDP[way]}", step=step) as bench:
        await bench.launch("h:0")
        for slots in (("h:0", "h:1"), ("h:0", "h:1", "h:2"), ("h:1",)):
            begun = time.time()
            await bench.rescale(*slots)
            await bench.step_at(len(slots), begun)
        await complete(bench)


def listening(known: list[processes.ProcessId]) -> set[str]:
    """Addresses at which these processes listen."""
    found: set[str] = set()
    for pid, _ in known:
        found |= {c.laddr.ip for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return found


@asynchronous
async def test_nothing_listens_beyond_this_machine(folder: Path) -> None:
    async with make(folder) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        assert listening(bench.engine.pids()) <= {"127.0.0.1", "::1"}
        assert (folder / "torch-store").stat().st_mode & 0o077 == 0
        await complete(bench)
        assert not (folder / "torch-store").exists()


NATIVE = """
import torch.distributed as dist
from jupyter_elastic import training

dist.init_process_group("gloo")
found = training.agree(training.rank() == 1), training.rank(), training.size()
dist.destroy_process_group()
"""


@asynchronous
async def test_a_group_that_the_cell_forms_is_known_to_training(folder: Path) -> None:
    async with Bench(Torch, folder, NATIVE, out=("found",)) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert [found["found"] for _, found in sorted(bench.results().items())] == [(True, 0, 2), (True, 1, 2)]


def test_another_frameworks_state_is_sent_to_horovod() -> None:
    host: Any = SimpleNamespace(channel=SimpleNamespace(), session=SimpleNamespace(on_left=None))
    with pytest.raises(EngineError, match="--engine horovod"):
        TorchWorker(host).group("tensorflow")


@pytest.mark.parametrize("error", [RuntimeError("nan"), ValueError("the loss is nan")])
def test_whatever_a_cell_stumbles_over_once_a_member_is_gone_counts_as_that(error: Exception) -> None:
    """NCCL raises nothing: what it gave may be no number."""
    channel = SimpleNamespace(group_broken=threading.Event())
    host: Any = SimpleNamespace(channel=channel, session=SimpleNamespace(on_left=None))
    worker = TorchWorker(host)
    worker.group("torch")
    assert worker.peer_lost(error) is None
    channel.group_broken.set()
    assert "nan" in str(worker.peer_lost(error))
    assert worker.peer_lost(KeyboardInterrupt()) is None


def test_a_pytorch_that_is_too_old_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.6.1+cpu"))
    host: Any = SimpleNamespace(channel=SimpleNamespace(), session=SimpleNamespace(on_left=None))
    with pytest.raises(EngineError, match=r"PyTorch 2.7 or later, and this is 2.6.1\+cpu"):
        TorchWorker(host).group("torch")


GROWS = """
import numpy as np, torch
from jupyter_elastic import training

torch.manual_seed(SEED)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = training.State(model=model, optimizer=optimizer, sized=-1, batch=32, before=32, changed=0,
                       gained=0.0, noise=0.0)
began = []

def measured_noise():
    def loss(weights, x, y):
        return torch.nn.functional.cross_entropy(torch.func.functional_call(model, weights, (x[None],)), y[None])
    weights = {name: value.detach() for name, value in model.named_parameters()}
    some = np.random.default_rng(state.step).permutation(len(x_train))[:256]
    of_each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
    found = of_each(weights, torch.from_numpy(x_train[some]), torch.from_numpy(y_train[some]))
    return training.noise_scale(torch.cat([rows.flatten(1) for rows in found.values()], 1))

@training.run
def train(state):
    for state.epoch in state.epochs(20 if HOW != "adascale" else 40):
        while state.epoch == 4 and training.size() < 4:
            note(event="alone")
            time.sleep(0.05)
            state.commit()
        if state.epoch == 4 and not began:
            began.append(time.monotonic())
        if state.sized != state.epoch:
            batch = 32 * training.size() if HOW != "constant" else 32
            if batch != state.batch:
                state.before, state.batch, state.changed = state.batch, batch, state.step
            state.sized = state.epoch
        for x, y in training.batches((x_train, y_train), batch_size=state.batch, seed=SEED):
            rate = 0.1
            if HOW == "scaled":
                rate = training.scaled_rate(0.1, batch=state.batch, base_batch=32, warmup_steps=20,
                                            steps=state.step - state.changed, previous_batch=state.before)
            elif HOW == "adascale" and state.batch > 32:
                if (state.step - state.changed) % 10 == 0:
                    state.noise = measured_noise()
                rate = training.scaled_rate(0.1, batch=state.batch, base_batch=32, rule="adascale",
                                            noise_scale=state.noise)
            state.gained += rate / 0.1  # steps of the small batch that this one is worth
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if HOW == "adascale" and state.gained >= 900:
                return
        state.commit()

train(state)
seconds = time.monotonic() - began[0]
with torch.no_grad():
    answers = model(torch.from_numpy(x_test))
    loss = float(torch.nn.functional.cross_entropy(answers, torch.from_numpy(y_test)))
    accuracy = float((answers.argmax(1).numpy() == y_test).mean())
steps = state.step
"""


@pytest.mark.skipif(not EVERYTHING, reason="minutes; set JUPYTER_ELASTIC_TEST_EVERYTHING")
@asynchronous
async def test_a_batch_that_grows_with_the_workers_loses_less_with_a_scaled_rate(tmp_path: Path) -> None:
    """The digits, one worker and then four: the batch stays, grows, or grows with the learning rate, by two rules."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    split = train_test_split((digits.data / 16).astype("float32"), digits.target, test_size=0.2, random_state=0)
    names = dict(zip(("x_train", "x_test", "y_train", "y_test"), split, strict=True))
    found: dict[str, list[Any]] = {}
    for how in ("constant", "grows", "scaled", "adascale"):
        for seed in range(3):
            out = ("loss", "accuracy", "steps", "seconds")
            folder = tmp_path / f"{how}-{seed}"
            async with Bench(Torch, folder, NOTE + GROWS, names={**names, "HOW": how, "SEED": seed}, out=out) as bench:
                await bench.launch("h:0")
                await bench.until(lambda bench=bench: [step for step in bench.steps() if step.get("event")])
                await bench.rescale("h:0", "h:1", "h:2", "h:3")
                ended = await bench.ended(240)
                assert ended.outcome == "completed", bench.story()
                found.setdefault(how, []).append(bench.results()[0])
    means = {how: {key: sum(one[key] for one in some) / len(some) for key in some[0]} for how, some in found.items()}
    sys.stderr.write(f"\n{means}\n")
    assert means["scaled"]["steps"] < 0.6 * means["constant"]["steps"]
    loss = {how: mean["loss"] for how, mean in means.items()}
    assert loss["scaled"] - loss["constant"] < 0.5 * (loss["grows"] - loss["constant"])
    assert means["scaled"]["accuracy"] >= means["constant"]["accuracy"] - 0.03
    assert means["adascale"]["steps"] < 0.6 * means["constant"]["steps"]
    assert means["adascale"]["accuracy"] >= means["constant"]["accuracy"] - 0.01
