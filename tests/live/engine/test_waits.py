"""A rank that waits for another is said, with the place where the other is; whoever only computes is not accused."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process
from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.platform import processes
from tests.live.engine.bench import NOTE, TORCH, Bench, asynchronous, check_training, needs
from tests.live.engine.test_torch_distributed import cell

pytestmark = needs("torch")

HOROVOD = "import torch, horovod.torch as hvd\nhvd.init()\ndef together(): hvd.allreduce(torch.ones(1), name='a')\n"
GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + FOLDER + "/meet", rank=rank, world_size=world_size)
def together(): dist.all_reduce(torch.ones(1))
"""
SLEEPS = """
together()
if rank == 1:
    while not stopped():
        time.sleep(.02)  # here it is
note(rank=rank)
together()
together()
while not os.path.exists(FOLDER + "/end"): time.sleep(.02)
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_ELASTIC_WAIT_S", "0.6")


@pytest.mark.parametrize(("engine", "ring"), [(Horovod, HOROVOD), (Process, GLOO)], ids=["horovod", "gloo"])
@asynchronous
async def test_who_waits_for_whom_and_where_that_one_is(engine: type, ring: str, folder: Path) -> None:
    source = NOTE + ring + SLEEPS
    line = 1 + next(n for n, text in enumerate(source.splitlines(), 1) if "here it is" in text)  # the cell's first is 2
    async with Bench(engine, folder, source) as bench:
        await bench.launch("h:0", "h:1")
        said = await bench.until(bench.engine.waits)
        assert said.startswith("rank 0 waits for rank 1 since ")
        assert f"which is at <In[1]>:{line}" in said
        bench.finish()
        await bench.until(lambda: len(bench.steps()) == 2 and not bench.engine.waits())
        (folder / "end").touch()
        assert (await bench.ended()).outcome == "completed"


@asynchronous
async def test_a_rank_that_holds_pythons_lock_in_c(folder: Path) -> None:
    """It can't answer; where it is, is known all the same: an expression that backtracks never comes back to Python."""
    held = "if rank:\n    import re\n    re.match(r'(a+)+$', 'a' * 60 + 'b')  # here it is\ntogether()\n"
    source = NOTE + HOROVOD + "together()\n" + held
    line = 1 + next(n for n, text in enumerate(source.splitlines(), 1) if "here it is" in text)
    async with Bench(Horovod, folder, source) as bench:
        await bench.launch("h:0", "h:1")
        said = await bench.until(lambda: f"<In[1]>:{line}" in bench.engine.waits() and bench.engine.waits())
        assert said.startswith("rank 0 waits for rank 1 since ")
        assert said.endswith(f"which is at <In[1]>:{line} (something there does not let go of Python's lock)")


@asynchronous
async def test_two_that_wait_in_different_places(folder: Path) -> None:
    source = NOTE + HOROVOD + "together()\nif rank: hvd.allreduce(torch.ones(1), name='b')\nelse: together()\n"
    async with Bench(Horovod, folder, source) as bench:
        await bench.launch("h:0", "h:1")
        await bench.until(lambda: "wait for each other" in bench.engine.waits())


@asynchronous
async def test_who_waits_a_little_in_each_step_does_not_wait(folder: Path) -> None:
    """Rank 1 is slow and rank 0 nearly always in a collective, each time in another."""
    steps = "for step in range(60):\n    if rank: time.sleep(.05)\n    together()\n"
    async with Bench(Horovod, folder, NOTE + HOROVOD + steps) as bench:
        await bench.launch("h:0", "h:1")
        said = set()
        while bench.exit is None:
            said.add(bench.engine.waits())
            await asyncio.sleep(0.02)
        assert bench.exit.outcome == "completed", bench.story()
        assert said == {""}
        assert bench.engine.attempt.watch.polls > 10


def send(bench: Bench, rank: int, number: int) -> None:
    member = next(m for m in bench.engine.members.values() if m.rank == rank and m.process)
    processes.send(member.process.known, number)


@pytest.mark.parametrize(("engine", "source"), [(Horovod, TORCH), (Torch, cell())], ids=["horovod", "torch"])
@asynchronous
async def test_the_others_go_on_without_a_worker_that_a_signal_has_stopped(
    engine: type, source: str, folder: Path
) -> None:
    async with Bench(engine, folder, source, out=("steps", "weights")) as bench:
        await bench.launch("h:0", "h:1", "h:2")
        await bench.step_at(3)
        send(bench, 1, signal.SIGSTOP)
        (death,) = await bench.until(lambda: bench.of("DeathReported"))
        assert (death.rank, death.cause) == (1, "was stopped by a signal while others waited for it, and was killed")
        await bench.step_at(3, death.at)
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()
        check_training(bench)


RESUMABLE = """
import torch.distributed as dist
dist.init_process_group("gloo")
enough = torch.zeros(1)
while not enough.item():
    note(size=world_size, restarts=int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
    time.sleep(.01)
    enough += float(stopped())
    dist.all_reduce(enough)
"""


@asynchronous
async def test_a_resumable_cell_is_started_anew_without_a_stopped_worker(folder: Path) -> None:
    async with Bench(Torch, folder, NOTE + "import torch\n" + RESUMABLE, resumable=True) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        send(bench, 1, signal.SIGSTOP)
        await bench.until(lambda: any(step["restarts"] == 1 for step in bench.steps()))
        (death,) = bench.of("DeathReported")
        assert death.cause.startswith("was stopped by a signal")
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()


@asynchronous
async def test_a_stopped_worker_without_which_the_job_would_end_is_said_and_may_go_on(folder: Path) -> None:
    source = NOTE + GLOO + SLEEPS.replace("together()\n", "note(begins=rank)\n", 1).replace("note(rank=rank)\n", "")
    async with Bench(Process, folder, source) as bench:
        await bench.launch("h:0", "h:1")
        await bench.until(lambda: len(bench.steps()) == 2)
        send(bench, 1, signal.SIGSTOP)
        bench.finish()
        words = (
            r"rank 0 waits for rank 1 since .* \(process \d+ is stopped by a signal; `kill -CONT \d+` lets it go on\)"
        )
        await bench.until(lambda: re.fullmatch(words, bench.engine.waits()))
        member = next(m for m in bench.engine.members.values() if m.rank == 1)
        await bench.until(lambda: member in bench.engine.attempt.watch.useless([member]))
        send(bench, 1, signal.SIGCONT)
        await bench.until(lambda: not bench.engine.waits())
        (folder / "end").touch()
        assert (await bench.ended()).outcome == "completed", bench.story()


@asynchronous
async def test_two_that_wait_below_one_line_of_the_cell(folder: Path) -> None:
    """Their data are of unequal length: one is in a step, the other at the end of its epoch."""
    fit = (
        "def step(): hvd.allreduce(torch.ones(1), name='step')\n"
        "def end(): hvd.allreduce(torch.ones(1), name='end')\n"
        "def fit(batches):\n    for _ in range(batches): step()\n    end()\n"
    )
    (folder / "mine.py").write_text("import torch, horovod.torch as hvd\n" + fit)
    library = "import sys; exec(compile(open('mine.py').read(), '/v/site-packages/mine.py', 'exec'))\n"
    source = NOTE + HOROVOD + library + "together()\nfit(3 - rank)\n"
    async with Bench(Horovod, folder, source) as bench:
        await bench.launch("h:0", "h:1")
        said = await bench.until(bench.engine.waits)
        assert re.fullmatch(
            r"ranks 0 and 1 wait for each other at <In\[1\]>:\d+ since \d+ s: "
            r"rank 0 in step \(site-packages/mine.py:5\), rank 1 in end \(site-packages/mine.py:6\)",
            said,
        ), said
        await bench.engine.stop("time limit")
        assert (await bench.ended()).reason == said


@needs("tensorflow")
@asynchronous
async def test_a_strategy_that_waits_for_a_process_that_does_not_come(folder: Path) -> None:
    come = "if rank == 0: tf.distribute.MultiWorkerMirroredStrategy()\nwhile True: time.sleep(.02)\n"
    async with Bench(Process, folder, NOTE + "import tensorflow as tf\n" + come) as bench:
        await bench.launch("h:0", "h:1")
        said = await bench.until(lambda: "Strategy" in bench.engine.waits() and bench.engine.waits())
        assert said.startswith("rank 0 waits in MultiWorkerMirroredStrategy since ")
