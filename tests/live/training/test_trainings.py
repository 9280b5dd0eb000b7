"""Several trainings in one cell give what the same text gives in a plain kernel, through growth, deaths and pauses."""

from __future__ import annotations

import asyncio

import pytest

from jupyter_elastic.driver.members import MemberState
from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.training.context import context
from tests.live.engine.bench import NOTE, Bench
from tests.support.marks import everything

pytestmark = pytest.mark.usefixtures("warm_workers")

HELP = (
    NOTE
    + """
from jupyter_elastic import training
from jupyter_elastic.training.context import context

class Pruned(Exception):
    pass

def did(trial, state):
    if not context.warming_up:
        note(trial=trial, step=state.step, size=training.size(), rank=training.rank())
    if not os.path.exists(os.path.join(FOLDER, "hurry")):
        time.sleep(0.05)
"""
)

GRID = (
    HELP
    + """
import torch
x = torch.arange(32.0).reshape(32, 1) / 32
found = []
for trial, lr in enumerate((0.05, 0.1, 0.2)):
    net = torch.nn.Linear(1, 1 + trial, bias=False)                        # another model each time
    torch.nn.init.constant_(net.weight, lr)
    opt = torch.optim.SGD(net.parameters(), lr=lr)
    state = training.State(net=net, opt=opt, best=float("inf"))

    @training.run
    def fit(state):
        for state.epoch in state.epochs(25 if trial == 1 else 3):
            for xs in training.batches(x, 8):
                opt.zero_grad()
                loss = (net(xs) - 3 * xs).pow(2).mean()
                loss.backward()
                opt.step()
                did(trial, state)
            state.best = min(state.best, training.total(float(loss.detach())))
            state.log(trial=trial)
            state.commit()
            if trial == 0 and state.epoch == 1:
                raise Pruned(trial)
        return net

    try:
        given = fit(state)
        assert given is net
        ended = "whole"
    except Pruned as pruned:
        ended = f"pruned {pruned}"
    found.append((ended, state.step, len(state.history), opt.param_groups[0]["lr"],
                  [round(w, 5) for w in net.weight.detach().ravel().tolist()]))
"""
)
"""A grid search whose first trial is pruned by an exception, the second one long, the third one short."""

PHASES = (
    HELP
    + """
import torch
torch.manual_seed(3)
x = torch.arange(32.0).reshape(32, 1) / 32
net = torch.nn.Linear(1, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
state = training.State(net=net, opt=opt)

@training.run
def fit(state, until, goal):
    for state.epoch in state.epochs(until):
        for xs in training.batches(x, 8):
            opt.zero_grad()
            (net(xs) - goal(xs)).pow(2).mean().backward()
            opt.step()
            did(until, state)
        state.commit()
    return [p.detach().clone() for p in net.parameters()]

first = fit(state, 3, lambda xs: 3 * xs)                                    # pre-train,
opt.param_groups[0]["lr"] = 0.01
second = fit(state, 28, lambda xs: 1 - xs)                                  # fine-tune the same state,
student = torch.nn.Linear(1, 2)                                             # and a student of the first phase
rate = torch.optim.SGD(student.parameters(), lr=0.2)

@training.run
def follow(state, teacher):
    for _ in state.epochs(2):
        for xs in training.batches(x, 8):
            rate.zero_grad()
            (student(xs) - torch.nn.functional.linear(xs, *teacher)).pow(2).mean().backward()
            rate.step()
            did(0, state)

follow(training.State(net=student, opt=rate), first)
found = [[round(v, 4) for p in some for v in p.detach().ravel().tolist()]
         for some in (first, second, student.parameters())] + [state.step]
"""
)


def plain(cell, folder):
    """What the same text gives in a plain kernel."""
    folder.mkdir()
    (folder / "hurry").touch()
    names = {"FOLDER": str(folder), "__name__": "__main__"}
    before = context.reducers
    exec(compile(cell, "cell", "exec"), names)
    context.reducers = before
    return names["found"]


async def at(bench, trial, size, after=0.0, step=0):
    """A step of this trial at this size."""
    return await bench.until(
        lambda: next((s for s in bench.steps() if (s["trial"], s["size"]) == (trial, size) and s["at"] > after
                      and s["step"] > step), None))  # fmt: skip


def hurry(bench):
    (bench.folder / "hurry").touch()


def check(bench, expected):
    assert bench.exit.outcome == "completed", bench.story()
    results = bench.results()
    assert results
    for rank, values in results.items():
        assert close(values["found"], expected), (rank, values["found"], expected, bench.story())


def close(mine, theirs):
    if isinstance(theirs, float):
        return mine == pytest.approx(theirs, rel=2e-3, abs=2e-4)
    if isinstance(theirs, list | tuple):
        return len(mine) == len(theirs) and all(map(close, mine, theirs))
    return mine == theirs


def trained(bench, trial):
    """The steps of a trial that rank 0 noted, in order."""
    return [s["step"] for s in bench.steps() if s["trial"] == trial and s["rank"] == 0]


@pytest.mark.parametrize(("engine", "size"), [(Torch, 1), (Torch, 2), (Horovod, 2)])
def test_a_grid_search_gives_what_it_gives_in_a_kernel(engine, size, tmp_path):
    async def story():
        async with Bench(engine, tmp_path / "job", GRID, out=("found",)) as bench:
            hurry(bench)
            await bench.launch(*(f"h:{number}" for number in range(size)))
            await bench.ended(120)
            check(bench, plain(GRID, tmp_path / "plain"))

    asyncio.run(story())


@pytest.mark.parametrize(("engine", "cell", "trial"), [(Torch, GRID, 1), (Horovod, GRID, 1), (Torch, PHASES, 28)])
def test_growth_and_a_death_in_the_second_training(engine, cell, trial, tmp_path):
    async def story():
        async with Bench(engine, tmp_path / "job", cell, out=("found",)) as bench:
            await bench.launch("h:0")
            await at(bench, trial, 1)
            await bench.until(lambda: bench.of("RunningReported")[-1].elastic)
            await bench.rescale("h:0", "h:1")
            grown = await at(bench, trial, 2)
            await at(bench, trial, 2, step=grown["step"] + 4)
            bench.kill(0)
            alone = await at(bench, trial, 1, after=grown["at"])
            await at(bench, trial, 2, after=alone["at"])  # the slot has another worker
            hurry(bench)
            await bench.ended(120)
            check(bench, plain(cell, tmp_path / "plain"))
            assert "size mismatch" not in bench.text(0, "stderr")

    asyncio.run(story())


@pytest.mark.parametrize(("engine", "cell", "trial"), [(Torch, GRID, 1), (Horovod, GRID, 1), (Torch, PHASES, 28)])
def test_a_job_that_begins_anew_in_its_second_training_goes_on_there(engine, cell, trial, tmp_path):
    async def story():
        async with Bench(engine, tmp_path / "job", cell, out=("found",)) as bench:
            await bench.launch("h:0", "h:1")
            await at(bench, trial, 2)
            await bench.engine.stop("preempt")
            assert (await bench.ended()).outcome == "preempted"
            last = max(bench.steps(), key=lambda step: step["at"])
        async with Bench(engine, tmp_path / "job", cell, out=("found",), attempt=2) as bench:
            await bench.launch("h:3", "h:4")
            again = await at(bench, trial, 2, after=last["at"])
            assert again["step"] >= last["step"]
            for rank in (0, 1):
                bench.kill(rank)
            await at(bench, trial, 2, step=again["step"] + 5)
            hurry(bench)
            await bench.ended(120)
            check(bench, plain(cell, tmp_path / "plain"))
            first = trained(bench, bench.steps()[0]["trial"])
            assert len(first) == len(set(first)), "the first training was not trained again"
            assert "training 1 of this cell was finished before" in bench.text(0, "stderr")

    asyncio.run(story())


OVERTAKEN = (
    HELP
    + """
@training.run
def wait(state):                                                            # looks for no change
    while not os.path.exists(os.path.join(FOLDER, "go")):
        time.sleep(0.01)
    return "waited"

@training.run
def count(state):
    for state.epoch in state.epochs(30):
        for _ in training.batches(list(range(8)), 4):
            state.total += 1
            did(1, state)
        state.commit()
    return state.total

found = [wait(training.State(name="a")), count(training.State(total=0))]
"""
)


@pytest.mark.parametrize("engine", [Torch, Horovod])
def test_a_newcomer_that_waits_for_a_training_that_ends_meanwhile_comes_into_the_next_one(engine, tmp_path):
    async def story():
        async with Bench(engine, tmp_path / "job", "import torch\n" + OVERTAKEN, out=("found",)) as bench:
            await bench.launch("h:0")
            await bench.until(lambda: bench.engine.machine.regroups)
            await bench.rescale("h:0", "h:1")
            workers = bench.engine.machine.workers
            await bench.until(lambda: any(worker.place == MemberState.RUN for worker in workers.values()))
            (bench.folder / "go").touch()
            await at(bench, 1, 2)
            hurry(bench)
            await bench.ended()
            check(bench, ["waited", 60])
            assert sorted(bench.results()) == [0, 1]

    asyncio.run(story())


KERAS_FOLDS = (
    HELP
    + """
import keras, numpy as np
x = np.arange(32, dtype="float32").reshape(32, 1) / 32
found = []
for trial, units in enumerate((1, 2, 3)):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(units, kernel_initializer="ones")])
    optimizer = keras.optimizers.SGD(0.1 * (trial + 1), momentum=0.5)
    state = training.State(model=model, optimizer=optimizer)
    step = training.keras.train_step(model, optimizer, keras.losses.MeanSquaredError())

    @training.run
    def fit(state):
        for state.epoch in state.epochs(25 if trial == 1 else 2):
            for xs, ys in training.batches((x, np.repeat(3 * x, units, 1)), 8):
                step(xs, ys)
                did(trial, state)
            state.commit()
        return state.epoch

    fit(state)
    weights = [round(float(w), 5) for w in model.get_weights()[0].ravel()]
    found.append((state.step, float(optimizer.learning_rate), weights))
"""
)


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=everything)])
def test_folds_of_keras_models(again, tmp_path):
    async def story():
        async with Bench(Horovod, tmp_path / "job", KERAS_FOLDS, out=("found",)) as bench:
            await bench.launch("h:0")
            first = await at(bench, 1, 1)
            await bench.rescale("h:0", "h:1")
            grown = await at(bench, 1, 2, after=first["at"])
            if again:
                bench.kill(0)
                bench.kill(1)
                await at(bench, 1, 2, step=grown["step"] + 5)
            hurry(bench)
            await bench.ended(120)
            check(bench, plain(KERAS_FOLDS, tmp_path / "plain"))

    asyncio.run(story())


NATIVE = (
    HELP
    + """
import torch, horovod.torch as hvd
hvd.init()
found = []
for trial, lr in enumerate((0.05, 0.1)):
    net = torch.nn.Linear(1, 1 + trial, bias=False)
    torch.nn.init.constant_(net.weight, lr)
    opt = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=lr), named_parameters=net.named_parameters())
    state = hvd.elastic.TorchState(model=net, optimizer=opt, step=0)

    @hvd.elastic.run
    def fit(state):
        while state.step < (60 if trial else 4):
            x = torch.full((4, 1), float(state.step % 3))
            opt.zero_grad()
            (net(x) - 3 * x).pow(2).mean().backward()
            opt.step()
            state.step += 1
            note(trial=trial, step=state.step, size=hvd.size(), rank=hvd.rank())
            if not os.path.exists(os.path.join(FOLDER, "hurry")): time.sleep(0.05)
            state.commit()

    fit(state)
    found.append((state.step, opt.param_groups[0]["lr"], [round(w, 5) for w in net.weight.detach().ravel().tolist()]))
"""
)


def test_native_states_one_after_the_other_and_a_job_that_begins_anew_in_the_second(tmp_path):
    async def story():
        async with Bench(Horovod, tmp_path / "alone", NATIVE, out=("found",)) as bench:
            hurry(bench)
            await bench.launch("h:0")
            await bench.ended()
            expected = bench.results()[0]["found"]
        assert [(step, rate) for step, rate, _ in expected] == [(4, 0.05), (60, 0.1)]
        async with Bench(Horovod, tmp_path / "job", NATIVE, out=("found",)) as bench:
            await bench.launch("h:0", "h:1")
            await at(bench, 1, 2, step=3)
            await bench.engine.stop("preempt")
            await bench.ended()
        async with Bench(Horovod, tmp_path / "job", NATIVE, out=("found",), attempt=2) as bench:
            await bench.launch("h:0", "h:1")
            hurry(bench)
            await bench.ended()
            check(bench, expected)

    asyncio.run(story())


SPLIT = (
    HELP
    + """
data = list(range(40))
mine = data[rank::world_size]
seen, done = [], []

@training.run
def train(state):
    for state.epoch in state.epochs(20):
        seen.append(state.epoch)
        for x in mine:
            state.total += x
        note(epoch=state.epoch, size=training.size(), rank=training.rank())
        if not os.path.exists(os.path.join(FOLDER, "hurry")): time.sleep(0.05)
        state.commit(epoch_done=DONE)

train(training.State(total=0))
"""
)


@pytest.mark.parametrize("done", [False, True])
def test_data_of_another_library_that_stay_split_and_epochs_that_begin_again_are_named(done, tmp_path):
    async def story():
        cell = "import torch\n" + SPLIT.replace("DONE", str(done))
        async with Bench(Torch, tmp_path / "job", cell, out=("seen",)) as bench:
            await bench.launch("h:0", "h:1")
            await bench.step_at(2)
            await bench.rescale("h:0")
            await bench.step_at(1)
            hurry(bench)
            await bench.ended()
            assert bench.exit.outcome == "completed", bench.story()
            said = bench.text(0, "stderr")
            assert (
                said.count("note: `mine = data[rank::world_size]` has split the data for 2 workers, and 1 go on") == 1
            )
            assert said.count("begins again: its data came neither by") == (0 if done else 1)
            assert len(bench.results()[0]["seen"]) == (20 if done else 21)

    asyncio.run(story())


def test_a_newcomer_that_cannot_pass_over_a_training_ends_nobody(tmp_path):
    """Of a native `hvd.elastic.run`, or of a training whose result can't be kept, it learns nothing."""

    async def story():
        async with Bench(Horovod, tmp_path / "job", NATIVE, out=("found",)) as bench:
            await bench.launch("h:0")
            first = await at(bench, 1, 1)
            await bench.rescale("h:0", "h:1")
            await at(bench, 1, 1, step=first["step"] + 20)
            hurry(bench)
            await bench.ended()
            assert bench.exit.outcome == "completed", bench.story()
            assert [(step, rate) for step, rate, _ in bench.results()[0]["found"]] == [(4, 0.05), (60, 0.1)]

    asyncio.run(story())
