"""Cells written for torchrun run unchanged on every engine: its environment is there, its port is free."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process
from jupyter_elastic.engines.torch.driver import Torch
from tests.live.engine import torch_cells
from tests.live.engine.bench import TORCH, Bench, asynchronous, needs

both = pytest.mark.parametrize("engine", [Horovod, Process, Torch])
TRAINED_S = 120.0
ENVIRONMENT = """
import os
started = ("MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "TORCHELASTIC_")
found = {name: value for name, value in os.environ.items() if name.startswith(started)}
"""
STORE = """
import datetime, os, time
from torch.distributed import TCPStore
patience = datetime.timedelta(seconds=30)
store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world_size, rank == 0, timeout=patience, use_libuv=LIBUV)
store.set(f"from {rank}", "hello")
came = store.get(f"from {1 - rank}").decode()
store.add("read", 1)
while rank == 0 and store.add("read", 0) < 2:  # it holds the store for both
    time.sleep(0.01)
"""


def framework(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} isn't installed here")


@both
@asynchronous
async def test_torchruns_environment_is_there(folder: Path, engine: type) -> None:
    async with Bench(engine, folder, ENVIRONMENT, out=("found", "local_rank"), attempt=3) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed"
        for rank, result in bench.results().items():
            found = result["found"]
            assert int(found.pop("MASTER_PORT")) > 1023
            assert result["local_rank"] == rank
            assert found == {
                "MASTER_ADDR": "127.0.0.1",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "GROUP_RANK": "0",
                "GROUP_WORLD_SIZE": "1",
                "ROLE_NAME": "default",
                "ROLE_RANK": str(rank),
                "ROLE_WORLD_SIZE": "2",
                "TORCHELASTIC_RUN_ID": "jupyter-elastic-1",
                "TORCHELASTIC_RESTART_COUNT": "2",
                "TORCHELASTIC_MAX_RESTARTS": "0",
                "TORCHELASTIC_USE_AGENT_STORE": "False",
            }
        ports = {result["found"].get("MASTER_PORT") for result in bench.results().values()}
        assert len(ports) == 1


@pytest.mark.parametrize("libuv", [True, False])
@needs("torch")
@asynchronous
async def test_the_port_is_free_for_both_stores_of_torch(folder: Path, *, libuv: bool) -> None:
    async with Bench(Process, folder, STORE, names={"LIBUV": libuv}, out=("came",)) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert [result["came"] for result in bench.results().values()] == ["hello", "hello"]


@pytest.mark.parametrize(
    ("source", "engine"),
    [
        pytest.param(torch_cells.DDP, Torch, id="ddp"),
        pytest.param(torch_cells.DDP, Horovod, id="ddp on horovod"),
        pytest.param(torch_cells.DDP, Process, id="ddp on processes"),
        pytest.param(torch_cells.FSDP, Torch, id="fsdp2"),
        pytest.param(torch_cells.ACCELERATE, Torch, id="accelerate", marks=framework("accelerate")),
        pytest.param(torch_cells.LIGHTNING, Torch, id="lightning", marks=framework("lightning")),
        pytest.param(torch_cells.TRAINER, Torch, id="trainer", marks=framework("transformers")),
    ],
)
@needs("torch")
@asynchronous
async def test_trains_together(folder: Path, source: str, engine: type) -> None:
    async with Bench(engine, folder, source, out=("weights", "seen", "size")) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended(TRAINED_S)).outcome == "completed", bench.story()
        first, second = bench.results()[0], bench.results()[1]
        assert first["size"] == second["size"] == 2
        assert first["weights"] == second["weights"]
        if source is not torch_cells.ACCELERATE:  # it reads every sample on every rank and keeps its own
            assert set(first["seen"]) != set(second["seen"])


@needs("torch")
@asynchronous
async def test_horovods_local_ranks_count_the_workers_of_the_host(folder: Path) -> None:
    source = (
        "import os, horovod.torch as hvd\nfrom horovod.torch import local_rank as theirs\nhvd.init()\n"
        "found = theirs(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), local_rank"
    )
    async with Bench(Horovod, folder, source, out=("found",)) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert bench.results() == {rank: {"found": (rank, rank, 2, 0, 1, rank)} for rank in (0, 1)}


@needs("torch")
@asynchronous
async def test_a_local_rank_is_a_workers_own_for_its_life(folder: Path) -> None:
    """A slot that comes anew gets the number that is free: rank and local rank then differ."""
    source = TORCH.replace("note(rank=", "note(local=hvd.local_rank(), env=os.environ['LOCAL_RANK'], rank=")
    async with Bench(Horovod, folder, source) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        await bench.rescale("h:1")
        await bench.running()
        after = time.time()
        alone = await bench.step_at(1, after)
        assert (alone["rank"], alone["local"], alone["env"]) == (0, 1, "1")
        await bench.rescale("h:1", "h:2")

        def together() -> set[tuple[int, int]]:
            return {(s["rank"], s["local"]) for s in bench.steps() if s["size"] == 2 and s["at"] > after}

        await bench.until(lambda: len(together()) == 2)
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert together() == {(0, 1), (1, 0)}


@framework("accelerate")
@needs("torch")
@asynchronous
async def test_notebook_launcher_trains_with_the_workers_that_are_there(folder: Path) -> None:
    async with Bench(Horovod, folder, torch_cells.NOTEBOOK_LAUNCHER, out=("weights", "size", "said")) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended(TRAINED_S)).outcome == "completed", bench.story()
        first, second = bench.results()[0], bench.results()[1]
        assert first["size"] == 2
        assert first == second
        assert "--gpus 8" in first["said"]


@framework("lightning")
@needs("torch")
@asynchronous
async def test_what_would_train_apart_in_lightning_is_refused_unless_it_is_meant(folder: Path) -> None:
    async with Bench(Horovod, folder, torch_cells.LIGHTNING_BY_DEFAULT, out=("said", "size")) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended(TRAINED_S)).outcome == "completed", bench.story()
        for result in bench.results().values():
            trainer, fabric = result["said"]
            assert 'Trainer(strategy="ddp", devices=world_size)' in trainer
            assert 'Fabric(strategy="ddp", devices=world_size)' in fabric
            assert result["size"] == 1


@framework("accelerate")
@needs("torch")
@asynchronous
async def test_an_accelerator_of_one_process_is_refused_in_a_job_of_several(folder: Path) -> None:
    apart = {"ACCELERATE_USE_CPU": "false"}
    async with Bench(Torch, folder, torch_cells.ACCELERATE_APART, env=apart, out=("said", "loader")) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended(TRAINED_S)).outcome == "completed", bench.story()
        for result in bench.results().values():
            assert len(result["said"]) == 2
            assert all("ACCELERATE_USE_CPU=true" in text for text in result["said"])
