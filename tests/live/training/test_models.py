"""Models and optimizers of every kind train on two workers as on one, or are refused with the way out."""

from __future__ import annotations

import asyncio
import os

import pytest

from jupyter_elastic.driver.driver import load_engine
from jupyter_elastic.types.errors import EngineError
from tests.live.engine.bench import NOTE, Bench

CELL = """
import torch
from jupyter_elastic import training

torch.manual_seed(0)
nn = torch.nn
x, y, words = torch.randn(48, 6), torch.randn(48, 1), torch.randint(0, 20, (48, 3))

MODEL

state = training.State(model=model, optimizer=optimizer)

@training.run
def train(state):
    for state.epoch in state.epochs(3):
        for xs, ys, ws in training.batches((x, y, words), 12):
            STEP
        state.commit()

train(state)
weights = [p.detach().double().tolist() for p in model.parameters()]
"""
PLAIN = "optimizer.zero_grad(); loss_of(xs, ys, ws).backward(); optimizer.step()"
LINEAR = """
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_of = lambda xs, ys, ws: nn.functional.mse_loss(model(xs), ys)
"""
EMBEDDING = """
model = nn.EmbeddingBag(20, 1, sparse=True)
optimizer = OPTIMIZER
loss_of = lambda xs, ys, ws: nn.functional.mse_loss(model(ws), ys)
"""
HALF = LINEAR.replace("\noptimizer", ".to(torch.TYPE)\noptimizer").replace(
    "model(xs)", "model(xs.to(torch.TYPE)).float()"
)
SCALED = """optimizer.zero_grad()
            loss = loss_of(xs, ys, ws)
            if state.step == 2 and training.rank() == 0:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
"""
TRAINS = {
    "unused parameters": (
        LINEAR.replace("nn.Linear(8, 1))", "nn.Linear(8, 1)); model.extra = nn.Linear(6, 8)").replace(
            "model(xs)", "model[:3](xs)"
        ),
        PLAIN,
    ),
    "parameters that one worker alone uses": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(6, 1), nn.Linear(6, 1)
    def forward(self, xs):
        high = xs[:, :1] > 1.5
        return torch.where(high, self.high(xs), self.low(xs)) if high.any() else self.low(xs)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_of = lambda xs, ys, ws: nn.functional.mse_loss(model(xs), ys)
""",
        PLAIN,
    ),
    "shared parameters": (
        LINEAR.replace(
            "nn.Linear(8, 1))", "nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)); model[4].weight = model[2].weight"
        ).replace("model(xs)", "model(xs)[:, :1]"),
        PLAIN,
    ),
    "a large layer": (
        LINEAR.replace("nn.Linear(8, 1)", "nn.Linear(8, 40_000)").replace("model(xs)", "model(xs)[:, :1]"),
        PLAIN,
    ),
    "sparse gradients, SGD": (EMBEDDING.replace("OPTIMIZER", "torch.optim.SGD(model.parameters(), lr=0.1)"), PLAIN),
    "sparse gradients, SparseAdam": (
        EMBEDDING.replace("OPTIMIZER", "torch.optim.SparseAdam(model.parameters())"),
        PLAIN,
    ),
    "bfloat16": (HALF.replace("TYPE", "bfloat16"), PLAIN),
    "float16": (HALF.replace("TYPE", "float16"), PLAIN),
    "several groups": (
        LINEAR.replace(
            "model.parameters(), lr=0.1",
            '[{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.01}], lr=0.1',
        ),
        PLAIN,
    ),
    "two optimizers": (
        LINEAR.replace("model.parameters(), lr", "model[0].parameters(), lr")
        + "second = training.prepare(torch.optim.Adam(model[2].parameters()))\n",
        PLAIN + "; second.step(); second.zero_grad()",
    ),
    "clipping": (
        LINEAR,
        PLAIN.replace(
            "optimizer.step()",
            "training.torch.synchronize(optimizer); nn.utils.clip_grad_norm_(model.parameters(), 1); optimizer.step()",
        ),
    ),
    "GradScaler, one worker overflows": (LINEAR + "scaler = torch.amp.GradScaler('cpu', init_scale=64.0)\n", SCALED),
    "torch.compile": (
        LINEAR.replace("\noptimizer", "\nmodel = torch.compile(model, backend='eager')\noptimizer"),
        PLAIN,
    ),
    "parameters added after a step": (
        LINEAR.replace("model.parameters(), lr", "model[0].parameters(), lr"),
        "if state.step == 2 and len(optimizer.param_groups) == 1: "
        'optimizer.add_param_group({"params": model[2].parameters()})\n            ' + PLAIN,
    ),
}
_CREATED = (
    LINEAR.replace("model(xs)", "model(xs) + sum(layer(xs) for layer in late)") + "late = []\n",
    """if state.step == 2 and not late:
                torch.manual_seed(SEED)
                late.append(nn.Linear(6, 1))
                optimizer.add_param_group({"params": late[0].parameters()})
            """
    + PLAIN,
)
TRAINS["parameters created after a step"] = (_CREATED[0], _CREATED[1].replace("SEED", "7"))
REFUSED = {
    "parameters that each worker has created for itself": (
        _CREATED[0],
        _CREATED[1].replace("SEED", "training.rank()"),
        "Call torch.manual_seed(...) before you make them",
    ),
    "a closure": (
        LINEAR.replace("SGD(model.parameters(), lr=0.1, momentum=0.9)", "LBFGS(model.parameters())"),
        "optimizer.step(lambda: loss_of(xs, ys, ws))",
        "optimizer.step(closure) computes gradients within the step",
    ),
}


def bench(engine, folder, model, step, cell=CELL, out=("weights",)):
    pytest.importorskip("torch")
    try:
        kind = load_engine(engine)
    except EngineError:
        pytest.skip(f"no engine {engine} is installed")
    if missing := kind.missing():
        pytest.skip(missing)
    return Bench(kind, folder / "job", cell.replace("MODEL", model).replace("STEP", step), out=out)


def ended(bench, size=2):
    async def story():
        async with bench:
            await bench.launch(*(f"h:{slot}" for slot in range(size)))
            return await bench.ended(120)

    return asyncio.run(story())


@pytest.fixture(params=["horovod", "torch"])
def engine(request, warm_workers):
    return request.param


INDEXED = {"unused parameters", "parameters added after a step"}
"""Their loops take the model apart."""
WRAPPED = CELL.replace(
    "def train(state):",
    """def train(state):
    global model
    plain, model = model, training.wrap(model, find_unused_parameters=True)
    try:
        loop(state)
    finally:
        model = plain

def loop(state):""",
)


@pytest.mark.parametrize("what", TRAINS)
def test_two_workers_train_as_one_does(engine, what, tmp_path):
    check(what, bench(engine, tmp_path, *TRAINS[what]))


@pytest.mark.skipif(not os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"), reason="JUPYTER_ELASTIC_TEST_EVERYTHING")
@pytest.mark.parametrize("what", sorted(TRAINS.keys() - INDEXED))
def test_so_they_do_in_distributed_data_parallel(what, warm_workers, tmp_path):
    check(what, bench("torch", tmp_path, *TRAINS[what], WRAPPED))


def check(what, made):
    """Train on two workers, and here alone: the same comes out."""
    model, step = TRAINS[what]
    assert ended(made).outcome == "completed", made.story()
    alone = {}
    exec(CELL.replace("MODEL", model).replace("STEP", step), alone)
    found = made.results()
    assert len(found) == 2
    assert found[0]["weights"] == found[1]["weights"]
    low = what in {"bfloat16", "float16"}
    for mine, expected in zip(found[0]["weights"], alone["weights"], strict=True):
        flat = [value for row in mine for value in (row if isinstance(row, list) else [row])]
        wanted = [value for row in expected for value in (row if isinstance(row, list) else [row])]
        assert flat == pytest.approx(wanted, abs=0.05 if low else 1e-4)


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_the_way_out(engine, what, tmp_path):
    model, step, words = REFUSED[what]
    made = bench(engine, tmp_path, model, step)
    assert ended(made).outcome == "failed"
    assert words in made.text(0, "stderr") + made.text(1, "stderr")


CATCHES = (
    NOTE
    + "from jupyter_elastic.training.context import context\n"
    + CELL.replace("MODEL", LINEAR)
    .replace("epochs(3)", "epochs(20)")
    .replace(
        "STEP",
        """try:
                optimizer.zero_grad()
                loss_of(xs, ys, ws).backward()
                optimizer.step()
                if not context.warming_up:
                    note(rank=training.rank(), size=training.size(), step=state.step)
                if not os.path.exists(f"{FOLDER}/hurry"):
                    time.sleep(0.02)
            except:
                pass""",
    )
)


def test_a_cell_that_catches_everything_loses_nothing(engine, tmp_path):
    made = bench(engine, tmp_path, "", "", CATCHES)

    async def story():
        async with made:
            await made.launch("h:0", "h:1")
            await made.step_at(2)
            await made.rescale("h:0", "h:1", "h:2")
            await made.step_at(3)
            made.kill(2)
            await made.until(lambda: made.of("DeathReported"))
            (made.folder / "hurry").touch()
            assert (await made.ended(60)).outcome == "completed", made.story()

    asyncio.run(story())
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "hurry").touch()
    alone = {"FOLDER": str(tmp_path / "alone")}
    exec(CATCHES, alone)
    assert max(step["step"] for step in made.steps()) == 80  # no batch was left out
    for found in made.results().values():
        assert found["weights"][0][0] == pytest.approx(alone["weights"][0][0], abs=1e-4)
