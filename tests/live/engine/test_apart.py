"""What would train a model on each worker without a word is refused, or said."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process
from jupyter_elastic.engines.torch.driver import Torch
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
STEPS = """
import torch
import torch.distributed as dist
{before}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    {added}
    optimizer.step()
{after}
"""


def steps(added: str = "pass", before: str = "dist.init_process_group('gloo')", after: str = "") -> str:
    """A loop that forms a group, and what it does with it."""
    return STEPS.format(before=before, added=added, after=after)


WRAPS_NOTHING = {
    "only a group": steps(),
    "the loss is added up for a log": steps("dist.all_reduce(loss.detach())"),
    "objects are gathered": steps("dist.all_gather_object([None] * dist.get_world_size(), {'loss': loss.item()})"),
    "another model is wrapped": steps(
        before="dist.init_process_group('gloo'); it = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))"
    ),
    "groups of one": steps(
        before="dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)",
        added="[dist.all_reduce(p.grad) for p in model.parameters()]",
    ),
}
JOINED = {
    "gradients one by one": steps("[dist.all_reduce(p.grad) for p in model.parameters()]"),
    "gradients in one": steps("dist.all_reduce(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))"),
    "gradients of half the size": steps("[dist.all_reduce(p.grad.half()) for p in model.parameters()]"),
    "by a name of its own": steps(
        "[all_reduce(p.grad) for p in model.parameters()]",
        before="from torch.distributed import all_reduce; dist.init_process_group('gloo')",
    ),
    "gathered, then a mean": steps(
        "[dist.all_gather([torch.empty_like(p) for _ in range(2)], p.grad) for p in model.parameters()]"
    ),
    "by the module's own function": steps(
        "[torch.distributed.distributed_c10d.all_reduce(p.grad) for p in model.parameters()]"
    ),
    "weights at the end": steps(after="for p in model.parameters(): dist.all_reduce(p.data)"),
    "wrapped": steps().replace("optimizer =", "model = torch.nn.parallel.DistributedDataParallel(model)\noptimizer ="),
    "sharded": steps().replace(
        "optimizer =", "from torch.distributed.fsdp import fully_shard; fully_shard(model)\noptimizer ="
    ),
}
_HVD = "import horovod.torch as hvd; hvd.init()"
HOROVOD = {
    "only a group": steps(before=_HVD),
    "its optimizer": steps(before=_HVD).replace("0.1)", "0.1)\noptimizer = hvd.DistributedOptimizer(optimizer)"),
    "gradients by hand": steps("[hvd.allreduce_(p.grad) for p in model.parameters()]", before=_HVD),
    "all gradients by hand": steps("hvd.grouped_allreduce([p.grad for p in model.parameters()])", before=_HVD),
}
DATA = "import numpy as np\nx = np.random.default_rng(rank).normal(size=(80, 3)); y = x.sum(1)\n"
BY_ITSELF = {
    "xgboost": DATA + "import xgboost as xgb\nxgb.train({'max_depth': 2}, xgb.DMatrix(x, label=y), 2)",
    "xgboost's class": DATA + "import xgboost as xgb\nxgb.XGBRegressor(n_estimators=2).fit(x, y)",
    "lightgbm": DATA + "import lightgbm\nlightgbm.train({'verbose': -1}, lightgbm.Dataset(x, label=y), 2)",
    "lightgbm's class": DATA + "import lightgbm\nlightgbm.LGBMRegressor(n_estimators=2, verbose=-1).fit(x, y)",
    "catboost": DATA
    + "import catboost\ncatboost.CatBoostRegressor(iterations=2, verbose=0, allow_writing_files=False).fit(x, y)",
    "jax": "import jax\nstep = jax.jit(jax.grad(lambda w: w * w))\nfor _ in range(3): step(1.0)",
    "optax": "import jax, optax\nrule = optax.sgd(0.1)\nrule.init(1.0)\njax.value_and_grad(lambda w: w * w)(1.0)",
}
TOGETHER = {
    "xgboost": DATA
    + """
import os, torch.distributed as dist, xgboost as xgb
from xgboost.tracker import RabitTracker
dist.init_process_group("gloo")
how = [None]
if rank == 0:
    tracker = RabitTracker(host_ip=os.environ["MASTER_ADDR"], n_workers=world_size)
    tracker.start()
    how = [tracker.worker_args()]
dist.broadcast_object_list(how)
with xgb.collective.CommunicatorContext(**how[0]):
    model = xgb.train({"max_depth": 2}, xgb.DMatrix(x, label=y), 3)
found = model.predict(xgb.DMatrix(np.ones((1, 3)))).tolist()
""",
    "lightgbm": DATA
    + """
import lightgbm, os, socket, torch.distributed as dist
dist.init_process_group("gloo")
with socket.socket() as free:
    free.bind(("", 0))
    port = free.getsockname()[1]
machines = [None] * world_size
dist.all_gather_object(machines, f"{os.environ['MASTER_ADDR']}:{port}")
how = {"machines": ",".join(machines), "local_listen_port": port, "tree_learner": "data", "pre_partition": True}
model = lightgbm.train({**how, "verbose": -1}, lightgbm.Dataset(x, label=y), 3)
found = model.predict(np.ones((1, 3))).tolist()
""",
    "jax": """
import jax
jax.distributed.initialize()
from jax.experimental.multihost_utils import process_allgather
gradient = jax.grad(lambda w: w * w)(rank + 1.0)
found = [jax.process_count(), float(process_allgather(gradient).mean())]
assert jax.process_index() == rank
""",
}
ALL_OF_THEM = """
import contextlib, io, torch
import torch.distributed as dist
from jupyter_elastic.training.frameworks import independent
said = {}
for number, (name, source) in enumerate(CASES.items()):
    # A store for each: a group at the port of the one before may meet that one's store as it ends.
    how = f"init_process_group('gloo', init_method='file://{FOLDER}/store.{number}', rank={rank}, world_size=2)"
    source = source.replace("init_process_group('gloo')", how)
    independent._polled, independent._steps = False, 0
    with contextlib.redirect_stderr(io.StringIO()) as words:
        exec(compile(source, name, "exec"), {"rank": rank})
        independent.ended()
    said[name] = words.getvalue()
    if dist.is_initialized():
        dist.barrier()  # nobody closes connections on which another still reads
        dist.destroy_process_group()
independent._polled = True
"""
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
        assert "jupyter_elastic" not in bench.text(0, "stderr")  # as in a warning that we cause


@needs("torch")
@asynchronous
async def test_a_group_that_joins_no_model_is_said_and_gradients_added_up_by_hand_are_not(folder: Path) -> None:
    cases = {**WRAPS_NOTHING, **JOINED}
    async with Bench(Torch, folder, ALL_OF_THEM, names={"CASES": cases}, out=("said",)) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        first, second = (bench.results()[rank]["said"] for rank in (0, 1))
        assert {name for name, text in first.items() if text.count(NOTE) == 1} == WRAPS_NOTHING.keys()
        assert "".join(second.values()) == ""


@needs("torch")
@asynchronous
async def test_an_accelerator_that_prepares_nothing_is_said_at_the_cells_end(folder: Path) -> None:
    pytest.importorskip("accelerate")
    source = steps(before="from accelerate import Accelerator; Accelerator()")
    async with Bench(Torch, folder, source) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert [bench.text(rank, "stderr").count(NOTE) for rank in (0, 1)] == [1, 0]


@pytest.mark.horovod("torch")
@asynchronous
async def test_a_group_of_horovods_that_joins_no_model_is_said(folder: Path) -> None:
    async with Bench(Horovod, folder, ALL_OF_THEM, names={"CASES": HOROVOD}, out=("said",)) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        said = bench.results()[0]["said"]
        assert {name for name, text in said.items() if NOTE in text} == {"only a group"}


def there(name: str) -> pytest.MarkDecorator:
    library = name.split("'", maxsplit=1)[0]
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} isn't installed here")


@pytest.mark.parametrize("case", [pytest.param(name, marks=there(name)) for name in BY_ITSELF])
@asynchronous
async def test_a_library_that_trains_by_itself_is_said_once(folder: Path, case: str) -> None:
    async with Bench(Process, folder, BY_ITSELF[case]) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert [bench.text(rank, "stderr").count(NOTE) for rank in (0, 1)] == [1, 0]


@pytest.mark.parametrize("case", [pytest.param(name, marks=there(name)) for name in TOGETHER])
@asynchronous
async def test_the_lines_of_the_docs_train_one_model(folder: Path, case: str) -> None:
    async with Bench(Process, folder, TOGETHER[case], out=("found",)) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert bench.results()[0] == bench.results()[1]
        assert case != "jax" or bench.results()[0]["found"] == [2, 3.0]
        assert "note:" not in bench.text(0, "stderr")
