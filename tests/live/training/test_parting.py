"""A rank that leaves the training before the others: noticed, said, and never taken for an end."""

from __future__ import annotations

import asyncio
import json

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from tests.live.engine.bench import NOTE, TORCH, Bench
from tests.live.training import cells

TAIL = "\nprint('through', rank)\n"
NATIVE = TORCH.replace("        note(", "        if hvd.rank() == 1 and state.step == 4: break\n        note(").replace(
    "if stop.item() > 0:", "if state.step >= 30:"
)
PLAIN = (
    NOTE
    + """
import torch, horovod.torch as hvd
hvd.init()
for step in range(4 if hvd.rank() == 1 else 6):
    hvd.allreduce(torch.ones(1), name="loss")
"""
)
TORCHRUN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(4 if rank == 1 else 6):
    dist.all_reduce(torch.ones(1))
"""


def leaving(source, decision):
    """The cell, with an early stop after the fourth step's note."""
    note = next(line for line in source.splitlines() if line.strip().startswith("note(state"))
    indent = " " * (len(note) - len(note.lstrip()))
    return source.replace(note, f"{note}\n{indent}if {decision}: return None") + TAIL


def ended(source, folder, engine=Horovod):
    """Run a cell on two workers to its end."""
    bench = Bench(engine, folder / "job", source, names={"SEED": 0, "EPOCHS": 3, "MICRO": None})

    async def live():
        try:
            (bench.folder / "hurry").touch()
            await bench.launch("h:0", "h:1")
            return await bench.ended(100)  # a framework may have to be imported
        finally:
            await bench.close()

    return asyncio.run(live()), bench


@pytest.mark.parametrize(
    ("engine", "source"),
    [(Horovod, cells.TORCH), (Torch, cells.TORCH), (Horovod, cells.KERAS)],
    ids=["torch", "torch.distributed", "keras"],
)
def test_a_rank_that_leaves_alone_ends_the_job_with_the_way_out(engine, source, warm_workers, tmp_path):
    pytest.importorskip("torch" if source == cells.TORCH else "keras")
    exit_, bench = ended(leaving(source, "training.rank() == 1 and state.step >= 4"), tmp_path, engine)
    assert exit_.outcome == "failed", bench.story()
    for words in ("rank 1 left the training after step 4", "rank 0", "training.agree("):
        assert words in exit_.reason
    failure = json.loads((bench.folder / "error.json").read_text())
    assert failure["rank"] == 1
    assert "through 0" not in bench.text(0)


@pytest.mark.parametrize("engine", [Horovod, Torch])
def test_agreed_upon_all_leave_in_the_same_step(engine, warm_workers, tmp_path):
    decision = "training.agree(training.rank() == 1 and state.step >= 4)"
    exit_, bench = ended(leaving(cells.TORCH, decision), tmp_path, engine)
    assert exit_.outcome == "completed", bench.story()
    assert sorted((s["rank"], s["step"]) for s in bench.steps()) == [(r, s) for r in (0, 1) for s in (1, 2, 3, 4)]
    assert "through 0" in bench.text(0)
    assert "through 1" in bench.text(1)


def test_native_elastic_code_is_told_too(warm_workers, tmp_path):
    exit_, bench = ended(NATIVE, tmp_path)
    assert exit_.outcome == "failed", bench.story()
    assert "rank 1 came to the end of its cell" in exit_.reason
    assert "training.agree(" in exit_.reason


@pytest.mark.parametrize("source", [PLAIN, TORCHRUN], ids=["horovod", "torch.distributed"])
def test_a_plain_loop_says_who_had_ended(source, warm_workers, tmp_path):
    exit_, bench = ended(source, tmp_path)
    assert exit_.outcome == "failed", bench.story()
    assert "rank 1 had come to the end of its cell" in exit_.reason
