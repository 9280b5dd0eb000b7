"""Gradients that a loop accumulates by hand over several batches: a change in between loses none of them."""

from __future__ import annotations

import asyncio

import pytest

from tests.live.engine.bench import NOTE
from tests.live.training.test_models import bench

CELL = (
    NOTE
    + """
import contextlib, torch, warnings
warnings.filterwarnings("error", module="jupyter_elastic")  # of what we call ourselves, as a new version may dislike it
from jupyter_elastic import training
from jupyter_elastic.training.context import context

torch.manual_seed(0)
x, y = torch.randn(108, 6), torch.randn(108, 1)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
state = training.State(model=model, optimizer=optimizer)

@training.run
def train(state):
    net = training.wrap(model) if WRAP else model
    for state.epoch in state.epochs(3):
        for turn, (xs, ys) in enumerate(training.batches((x, y), 12)):
            last = turn % 3 == 2
            if turn % 3 == 0:
                optimizer.zero_grad()
            with contextlib.nullcontext() if last or net is model else net.no_sync():
                (torch.nn.functional.mse_loss(net(xs), ys) / 3).backward()
            if last:
                optimizer.step()
            if not context.warming_up and os.path.exists(f"{FOLDER}/waits"):
                note(rank=training.rank(), size=training.size(), step=state.step, turn=turn)
                if turn % 3 == 1 and state.step == (0 if training.size() == 1 else 4):
                    while not (os.path.exists(f"{FOLDER}/lost") if training.size() > 1 else context.change_wanted()):
                        time.sleep(0.01)
            state.commit()
        state.commit()

train(state)
weights = [p.detach().double().reshape(-1).tolist() for p in model.parameters()]
"""
)


@pytest.mark.parametrize(
    ("engine", "wrap"), [("horovod", False), ("torch", False), ("torch", True)], ids=["horovod", "torch", "no_sync"]
)
def test_a_grow_and_a_death_between_two_steps(engine, wrap, warm_workers, tmp_path):
    source = CELL.replace("WRAP", str(wrap))
    made = bench(engine, tmp_path, "", "", source)
    (made.folder / "waits").touch()

    async def story():
        async with made:
            await made.launch("h:0")
            await made.step_at(1)
            await made.rescale("h:0", "h:1")  # after the first of the batches of a step
            waits = [2, 4, 1]
            await made.until(lambda: [[s["size"], s["step"], s["turn"] % 3] for s in made.steps()].count(waits) == 2)
            made.kill(1)
            (made.folder / "lost").touch()
            assert (await made.ended(60)).outcome == "completed", made.story()

    asyncio.run(story())
    alone = {"FOLDER": str(tmp_path)}
    exec(source, alone)
    found = made.results()
    assert found
    for result in found.values():
        for mine, expected in zip(result["weights"], alone["weights"], strict=True):
            assert mine == pytest.approx(expected, abs=1e-5)


LAST = """
import torch
from jupyter_elastic import training
from jupyter_elastic.training.context import context

def trained(count, batch_size, **how):
    torch.manual_seed(0)
    x, y = torch.randn(count, 3, dtype=torch.double), torch.randn(count, 1, dtype=torch.double)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8, affine=False), torch.nn.Linear(8, 1))
    net = net.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state, shares = training.State(net=net, optimizer=optimizer), []
    @training.run
    def fit(state):
        for xs, ys in training.batches((x, y), batch_size, **how):
            optimizer.zero_grad()
            (net(xs) - ys).pow(2).mean().backward()
            optimizer.step()
            shares.append((len(xs), round(context.micro_batch.weight, 3)))
    fit(state)
    return shares, [p.detach().sum().item() for p in net.parameters()]

found = {str(case): trained(*case[0], **case[1]) for case in CASES}
said = []
for rows, how in ((2, {"least": 1}), (65, {})):
    try:
        trained(rows, 2 if rows == 2 else 64, **how)
    except ValueError as problem:
        said.append((str(problem), problem.__notes__[0]))
"""
LASTS = [((66, 64), {}), ((65, 64), {"drop_last": True}), ((5, 4), {"drop_last": True}), ((3, 3), {}), ((2, 64), {}),
         ((13, 10), {"micro_batch": 3}), ((14, 9), {"least": 4})]  # fmt: skip


@pytest.mark.parametrize("engine", ["horovod", "torch"])
def test_a_layer_that_needs_two_samples_has_them_in_each_batch(engine, warm_workers, tmp_path):
    made = bench(engine, tmp_path, "", "", LAST.replace("CASES", str(LASTS)), out=("found", "said"))

    async def story():
        async with made:
            await made.launch("h:0", "h:1")
            assert (await made.ended(60)).outcome == "completed", made.story()
            one, other = made.results()[0]["found"], made.results()[1]["found"]
            for case in LASTS:
                assert one[str(case)][1] == other[str(case)][1], case  # the weights
                least = case[1].get("least", 2)
                assert all(number >= least for found in (one, other) for number, _ in found[str(case)][0]), case
            assert [one[str(LASTS[0])][0], other[str(LASTS[0])][0]] == [[(32, 0.5), (2, 0.0)], [(32, 0.5), (2, 1.0)]]
            assert len(one[str(LASTS[1])][0]) == len(one[str(LASTS[2])][0]) == 1
            said = made.results()[0]["said"]
            assert all("Expected more than 1 value per channel" in text for text, _ in said)
            assert ["1 sample of a batch of 2" in said[0][1], "1 sample of a batch of 1 " in said[1][1]] == [True, True]

    asyncio.run(story())
