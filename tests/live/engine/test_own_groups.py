"""Groups that a cell forms itself, as under torchrun, over several hosts: rank 0 is on another host than the driver."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process
from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.platform import processes
from tests.live.engine import torch_cells
from tests.live.engine.bench import NOTE, Bench, asynchronous, needs
from tests.live.engine.test_multi_worker import FIT, NAMED
from tests.live.engine.test_torchrun import TRAINED_S, framework
from tests.support.marks import everything

HOSTS = (HostAddress(name="b", url="exec:"), HostAddress(name="c", url="exec:"))
AGAIN = (
    NOTE
    + """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
path = os.path.join(FOLDER, "last")
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
step = int(open(path).read()) if os.path.exists(path) else 0
while True:
    step += 1
    told = torch.tensor([float(stopped()), 1.0])
    dist.all_reduce(told)
    assert told[1] == world_size == dist.get_world_size()
    if rank == 0:
        with open(path + ".new", "w") as file:
            file.write(str(step))
        os.replace(path + ".new", path)
    note(rank=rank, size=world_size, restarts=restarts, count=step)
    if told[0]:
        break
    time.sleep(0.01)
"""
)


@pytest.mark.parametrize(
    ("source", "engine"),
    [
        pytest.param(torch_cells.DDP, Torch, id="ddp"),
        pytest.param(torch_cells.DDP, Process, id="ddp on processes", marks=everything),
        pytest.param(torch_cells.FSDP, Torch, id="fsdp2", marks=everything),
        pytest.param(torch_cells.ACCELERATE, Torch, id="accelerate", marks=[framework("accelerate"), everything]),
        pytest.param(torch_cells.TRAINER, Torch, id="trainer", marks=[framework("transformers"), everything]),
    ],
)
@needs("torch")
@asynchronous
async def test_trains_together(folder: Path, source: str, engine: type) -> None:
    async with Bench(engine, folder, source, out=("weights", "size"), hosts=HOSTS) as bench:
        await bench.launch("b:0", "a:0", "c:0")
        assert (await bench.ended(TRAINED_S)).outcome == "completed", bench.story()
        found = bench.results()
        assert sorted(found) == [0, 1, 2]
        assert [result["size"] for result in found.values()] == [3, 3, 3]
        assert found[0] == found[1] == found[2]


@needs("torch")
@asynchronous
async def test_a_resumable_one_goes_on_without_the_host_of_rank_0(folder: Path) -> None:
    async with Bench(Torch, folder, AGAIN, hosts=HOSTS, resumable=True) as bench:

        async def stepped(size: int) -> dict[str, Any]:
            after = time.time()
            return await bench.until(
                lambda: next(
                    (s for s in bench.steps() if s["size"] == size and s["at"] > after and not s["rank"]), None
                )
            )

        await bench.launch("b:0")
        await stepped(1)
        await bench.rescale("b:0", "a:0", "c:0")
        before = await stepped(3)
        worker_host = processes.identify(bench.engine.attempt.hosts.remote("b:0").hello.pid)
        processes.send(worker_host, signal.SIGKILL)
        after = await stepped(2)
        assert after["count"] > before["count"]
        assert after["restarts"] > before["restarts"]
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()


@asynchronous
async def test_tf_config_names_each_workers_own_host_and_port(folder: Path) -> None:
    async with Bench(Process, folder, NAMED, out=("found",), hosts=HOSTS) as bench:
        await bench.launch("b:0", "b:1", "a:0")
        assert (await bench.ended()).outcome == "completed", bench.story()
        found = {rank: json.loads(result["found"]) for rank, result in bench.results().items()}
        servers = found[0]["cluster"]["worker"]
        assert all(one["cluster"]["worker"] == servers for one in found.values())
        assert len(set(servers)) == 3
        assert [found[rank]["task"]["index"] for rank in range(3)] == [0, 1, 2]


@everything
@needs("tensorflow")
@asynchronous
async def test_tensorflows_own_strategy_trains_together(folder: Path) -> None:
    async with Bench(Horovod, folder, FIT, out=("size", "weights"), hosts=HOSTS) as bench:
        await bench.launch("b:0", "a:0", "c:0")
        assert (await bench.ended(120)).outcome == "completed", bench.story()
        found = bench.results()
        assert found[0] == found[1] == found[2]
        assert found[0]["size"] == 3
