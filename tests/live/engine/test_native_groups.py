"""Groups of `torch.distributed` that a cell forms in other ways than once by the environment work, or fail by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process
from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.worker import torchrun_environment
from tests.live.engine.bench import Bench, asynchronous, needs
from tests.live.engine.test_torchrun import TRAINED_S, framework

GROUPS = """
import datetime, os, socket, torch, torch.distributed as dist
patience = datetime.timedelta(seconds=60)
def total():
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    return value.item()
found = {}
dist.init_process_group("gloo")
found["environment"] = total()
try:
    dist.init_process_group("gloo")
except ValueError as problem:
    found["twice"] = str(problem)
found["after the refusal"] = total()
dist.barrier()
dist.destroy_process_group()
for again in range(2):
    path = os.path.join(FOLDER, f"group.{again}")
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world_size, timeout=patience)
    found[f"file {again}"] = total()
    dist.barrier()
    dist.destroy_process_group()
where = dict(rank=rank, world_size=world_size, timeout=patience)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORTS[0]}", **where)
found["tcp"] = total()
dist.barrier()
dist.destroy_process_group()
store = dist.TCPStore("127.0.0.1", PORTS[1], world_size, rank == 0, timeout=patience)
dist.init_process_group("gloo", store=store, **where)
found["store"] = total()
dist.barrier()
dist.destroy_process_group()
dist.init_process_group("gloo", init_method="env://")
found["environment again"] = total()
dist.barrier()
dist.destroy_process_group()
"""
BOTH = """
import torch, torch.distributed as dist, horovod.torch as hvd
hvd.init()
dist.init_process_group("gloo")
mine = torch.tensor([rank + 1.0])
by_horovod = hvd.allreduce(mine, op=hvd.Sum).item()
dist.all_reduce(mine)
by_torch = mine.item()
dist.destroy_process_group()
"""


def free_ports(count: int) -> list[int]:
    held = [torchrun_environment.reserve() for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


@pytest.mark.parametrize("engine", [Torch, Process])
@framework("torch")
@asynchronous
async def test_groups_by_environment_file_address_and_store(folder: Path, engine: type) -> None:
    async with Bench(engine, folder, GROUPS, names={"PORTS": free_ports(2)}, out=("found",)) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended(TRAINED_S)).outcome == "completed", bench.story()
        for result in bench.results().values():
            found = result["found"]
            assert "twice" in found.pop("twice")
            assert len(found) == 7
            assert set(found.values()) == {3.0}


@framework("torch")
@asynchronous
async def test_a_backend_that_the_machine_has_not_ends_the_job_with_torchs_own_error(folder: Path) -> None:
    source = "import torch.distributed as dist\ndist.init_process_group('nccl')\ndist.barrier()"
    async with Bench(Torch, folder, source) as bench:
        await bench.launch("h:0", "h:1")
        seen = await bench.ended(TRAINED_S)
        assert seen.outcome == "failed"
        assert "nccl" in seen.reason.lower(), bench.story()


@needs("torch")
@asynchronous
async def test_horovod_and_torch_distributed_in_one_cell_both_add_up(folder: Path) -> None:
    async with Bench(Horovod, folder, BOTH, out=("by_horovod", "by_torch")) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended(TRAINED_S)).outcome == "completed", bench.story()
        assert list(bench.results().values()) == 2 * [{"by_horovod": 3.0, "by_torch": 3.0}]
