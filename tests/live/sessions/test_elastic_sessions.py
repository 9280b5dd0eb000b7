"""Sessions whose number of workers changes while a cell with an elastic loop runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from jupyter_elastic.protocol.wire import ResizeJob
from jupyter_elastic.types import JobRunning, WorkerReplaced
from tests.live.sessions.test_session_cells import Session
from tests.support.marks import everything
from tests.support.pool import Pool

MADE = """
import os
import time
import torch
from jupyter_elastic import training
torch.manual_seed(1)
class Net(torch.nn.Linear):
    def out(self, x):
        return self(x) * scale
scale = 2.0
model = Net(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
state = training.State(model=model, optimizer=optimizer)
data = torch.arange(64.0).reshape(16, 4) / 64
def checked():
    return round(float(sum(p.double().sum() for p in model.parameters())), 9)
@training.run
def train(state, until, gate=""):
    for epoch in state.epochs(1_000_000):
        for x in training.batches(data, 8):
            state.optimizer.zero_grad()
            state.model.out(x).pow(2).mean().backward()
            state.optimizer.step()
        print("epoch", epoch, "of", training.size(), os.getpid(), flush=True)
        over = training.agree(epoch + 1 >= until and (not gate or os.path.exists(gate)))
        state.commit()
        if over:
            return training.size()
        time.sleep(0.01)
mine = [rank]
"""


@pytest.fixture
def elastic(shared_pool: Pool, request: pytest.FixtureRequest) -> Session:
    """An elastic session of one or two workers, which begins with one."""
    engine = request.node.callspec.params["engine"]
    session = Session(shared_pool, f"e-{request.node.name[-20:].strip('[]_-')}".replace("[", "-"), engine)
    session.range, session.slots = (1, 2), 1
    return session


def resize(session: Session, job: int, size: int) -> None:
    """Have the job run at this size, and wait until it does."""
    session.pool.wait_fact(job, JobRunning, elastic=True)
    session.pool.client.ask(ResizeJob(job=job, min_slots=size, max_slots=size))
    session.pool.wait(
        lambda: any(isinstance(e, JobRunning) and len(e.slots) == size and e.generation > 1 and e.elastic
                    for e in session.pool.events_of(job)[-3:]), f"job {job} runs with {size}")  # fmt: skip


ENGINES = pytest.mark.parametrize("engine", ["torch", pytest.param("horovod", marks=everything)])


def notes(session: Session, job: int, rank: int = 0) -> list[str]:
    """What a rank was told."""
    return [line for line in session.pool.output(job, rank, "stderr").splitlines() if line.startswith("note: ")]


@ENGINES
def test_grows_and_shrinks_in_a_loop_and_newcomers_have_what_is_shared(
    elastic: Session, engine: str, tmp_path: Path
) -> None:
    pool, gate = elastic.pool, tmp_path / "gate"
    elastic.run(MADE + "print(train(state, 1))")
    job, _ = elastic.run("training.share(model, optimizer, state, 'scale')\ntrain(state, 2)")
    (note,) = notes(elastic, job)
    assert note.endswith("what newcomers are to have is not named: training.share(model, optimizer, ...)")
    job, _ = elastic.run("train(state, 3)")
    assert notes(elastic, job) == [
        "note: the session keeps its size in this cell: newcomers would lack data: name it by training.share"
    ]
    elastic.run("training.share(data)")
    job = elastic.submit(f"print(train(state, 4, {str(gate)!r}), checked())")
    pool.until(lambda: " of 1" in pool.output(job), "it trains")
    resize(elastic, job, 2)
    gate.touch()
    assert pool.ended(job).outcome == "completed", pool.output(job, 0, "stderr")
    known = elastic.folder.read()
    assert known is not None
    assert (known.size, known.range) == (2, (1, 2))
    sums = [pool.output(job, rank).split()[-1] for rank in (0, 1)]
    assert sums[0] == sums[1]
    assert notes(elastic, job) == []
    elastic.slots = 2
    said = elastic.says("print(checked(), 'mine' in globals(), rank, world_size)")
    assert said == [f"{sums[0]} {rank == 0} {rank} 2" for rank in (0, 1)]
    gate.unlink()
    job = elastic.submit(f"print(train(state, 5, {str(gate)!r}), checked())")
    pool.until(lambda: " of 2" in pool.output(job), "both train")
    resize(elastic, job, 1)
    gate.touch()
    assert pool.ended(job).outcome == "completed", pool.output(job, 0, "stderr")
    assert notes(elastic, job) == ["note: 1 of the session's workers left, and their variables with them; 1 go on"]
    elastic.slots = 1
    assert elastic.says("print(mine, world_size)") == ["[0] 1"]
    pool.no_slot_is_leased_twice()


@everything
@ENGINES
def test_a_death_and_an_interrupt_in_the_loop_lose_no_more_than_that_rank(
    elastic: Session, engine: str, tmp_path: Path
) -> None:
    pool, gate = elastic.pool, tmp_path / "gate"
    elastic.run(MADE + "training.share(state, model, data, 'scale')")
    job = elastic.submit(f"print(train(state, 2, {str(gate)!r}))")
    pool.until(lambda: " of 1" in pool.output(job), "it trains")
    resize(elastic, job, 2)
    pool.until(lambda: " of 2" in pool.output(job, 1), "the newcomer trains")
    os.kill(int(pool.output(job, 1).split()[4]), signal.SIGKILL)
    pool.wait_fact(job, WorkerReplaced)
    gate.touch()
    assert pool.ended(job).outcome == "completed", pool.output(job, 0, "stderr")
    elastic.slots = 2
    first, second = elastic.says("import os\nprint(os.getpid(), checked())")
    assert first.split()[1] == second.split()[1]
    gate.unlink()
    job = elastic.submit(f"train(state, 4, {str(gate)!r})")
    for rank in (0, 1):
        pool.until(lambda rank=rank: " of 2" in pool.output(job, rank), "both train")
    pool.cancel(job)
    assert pool.ended(job).outcome == "cancelled"
    assert [line.split()[0] for line in elastic.says("print(os.getpid())")] == [first.split()[0], second.split()[0]]
    job = elastic.submit(f"train(state, 4, {str(gate)!r})")
    pool.until(lambda: " of 2" in pool.output(job), "both train")
    resize(elastic, job, 1)
    resize(elastic, job, 2)
    gate.touch()
    assert pool.ended(job).outcome == "completed", pool.output(job, 0, "stderr")
    first, second = elastic.says("print(checked())")
    assert first == second
