"""A cell of a real kernel whose workers are on several hosts, each a hand reached by `exec:`."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_elastic.cli.main import main
from jupyter_elastic.protocol.wire import SwitchPolicy
from tests.live.notebook.conftest import Cell, Notebook
from tests.support.pool import Pool

pytest.importorskip("torch")
CELL = """%%distribute --engine torch --gpus 1:2 --out size,where -o job
import os, time, torch
from jupyter_elastic import training
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = training.State(model=model, optimizer=optimizer)
@training.run
def train(state):
    print("here is rank", training.rank(), "of", training.size(), flush=True)
    for state.epoch in state.epochs(100_000):
        for x, in training.batches((torch.ones(8, 2),), 4):
            time.sleep(0.01)
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        if training.agree(os.path.exists(stop)):
            return training.size()
size = train(state)
where = os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]
"""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patched, Pool(tmp_path / "pool", slots=1) as pool:
        patched.setenv("JUPYTER_ELASTIC_DIR", str(pool.folder))
        pool.client.ask(SwitchPolicy(name="elastic_fifo", options={"cooldown": 0.0, "payback": 0.0}))
        yield pool


def test_a_cell_grows_to_a_host_that_is_added_and_each_rank_is_heard(pool: Pool, tmp_path: Path) -> None:
    notebook = Notebook(pool)
    try:
        notebook.load()
        notebook.run(f"stop = {os.fspath(tmp_path / 'stop')!r}")
        request = notebook.start(CELL)
        notebook.finish(request, until=says("here is rank 0 of 1"))
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["host", "add", "b", "exec:", "--slots", "1"]) == 0
        notebook.finish(request, until=says(r"\[rank 0\].*here is rank 0 of 2", r"\[rank 1\].*here is rank 1 of 2"))
        (tmp_path / "stop").touch()
        cell = notebook.finish(request)
        assert not cell.error
        assert "completed in" in cell.views[-1]
        said = notebook.run(
            "print([job.result(rank=rank) for rank in job.ranks], [p.slots for p in job.size_history()])"
        )
        each = "{'size': 2, 'where': ('0', '1')}"  # the only one on its host
        assert said.printed == f"[{each}, {each}] [1, 2, 0]\n", said.error
    finally:
        notebook.close()


def says(*patterns: str):
    """Whether a display of the cell has all of these."""

    def found(cell: Cell) -> bool:
        return any(all(re.search(pattern, view, re.DOTALL) for pattern in patterns) for view in cell.views)

    return found
