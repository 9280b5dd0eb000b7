"""A cell with parameter servers in a real kernel, on a pool of GPUs that has CPU slots for servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.platform import processes
from jupyter_elastic.protocol.wire import SwitchPolicy
from tests.live.engine.ps_cells import COUNTED
from tests.live.notebook.conftest import Notebook
from tests.support.other_user import other_user
from tests.support.pool import Pool

LONG_S = 240.0
STEPS = 20
"""Of an epoch of the cell."""
SIZES = """
from jupyter_elastic.types import Size
def plan(view):
    return {{job.job: Size(workers={}, servers={}) for job in view.jobs}}
"""
TELLS = 'note(event="cluster", shape=shape, cluster=cluster, sees=os.environ["CUDA_VISIBLE_DEVICES"])\n'
REACH = """
import os, socket, sys
for port in sys.argv[2].split(","):
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family) as other:
                other.connect((host, int(port)))
            print("reached", host, port)
        except OSError:
            pass
for pid in sys.argv[3].split(","):
    for what in ("ns/net", "ns/user", "environ", "mem", "fd/0", "root/etc/passwd"):
        try:
            os.open(f"/proc/{pid}/{what}", os.O_RDONLY)
            print("opened", pid, what)
        except OSError:
            pass
for root, _, files in os.walk(sys.argv[1]):
    print("read", root, files)
"""
"""What another user of the machine tries: the servers' ports, their processes and networks, the job's folder."""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    hosts = tmp_path / "hosts.json"
    slots = [{"index": number, "device": f"GPU-{number}"} for number in range(2)]
    hosts.write_text(json.dumps([{"name": "lab", "kind": "gpu", "slots": slots, "server_slots": 2}]))
    with Pool(tmp_path / "pool", options=("--hosts", str(hosts))) as started:
        yield started


@pytest.mark.skipif(not os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"), reason="JUPYTER_ELASTIC_TEST_EVERYTHING")
def test_a_cell_goes_between_sizes_outlives_its_driver_and_is_reached_by_nobody(pool: Pool, tmp_path: Path) -> None:
    def steps() -> list[dict[str, Any]]:
        found = (tmp_path / "steps").read_text().splitlines() if (tmp_path / "steps").exists() else []
        return [json.loads(line) for line in found if line.endswith("}")]

    def trained(shape: list[int], after: int) -> bool:
        return any(step["event"] == "epoch" and step["shape"] == shape for step in steps()[after:])

    def resized(workers: int, servers: int) -> None:
        before = len(steps())
        pool.client.ask(SwitchPolicy(name="mine", source=SIZES.format(workers, servers)))
        pool.wait(lambda: trained([workers, servers], before), f"it trains on {workers}/{servers}", LONG_S)

    notebook = Notebook(pool)
    try:
        notebook.load()
        notebook.run(f"FOLDER, EPOCHS, ROWS = {str(tmp_path)!r}, 1_000_000, 64")
        pool.client.ask(SwitchPolicy(name="mine", source=SIZES.format(1, 1)))
        head = "%%distribute --engine tensorflow_ps --gpus 1:2 --servers 1:2 --out total,epochs\n"
        request = notebook.start(head + COUNTED.replace("STEPS, FEATURES", TELLS + "STEPS, FEATURES", 1))
        pool.wait(lambda: trained([1, 1], 0), "it trains", LONG_S)
        resized(2, 1)
        resized(2, 2)
        assert pool.info(1).slots == ("lab:0", "lab:1", "lab:1000", "lab:1001")
        driver, *others = pool.pids(1)
        told = next(step for step in reversed(steps()) if step["event"] == "cluster")
        assert told["sees"] == "-1", "the coordinator has no GPU"
        if os.getuid() == 0:
            ports = [address.rpartition(":")[2] for roles in told["cluster"].values() for address in roles]
            words = (str(pool.job_folder(1)), ",".join(ports), ",".join(str(one[0]) for one in (driver, *others)))
            with other_user() as other:
                asked = other.start("-c", REACH, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                assert asked.communicate(timeout=60) == ("", "")
        processes.send(others[-1], signal.SIGSTOP)  # the others wait for it, in TensorFlow
        processes.send(driver, signal.SIGKILL)
        assert pool.requeued(1).cause == "lost"
        assert processes.living(others) == []
        before = len(steps())
        pool.wait(lambda: trained([2, 2], before), "it goes on", LONG_S)
        resized(1, 1)
        (tmp_path / "stop").touch()
        cell = notebook.finish(request)
        assert not cell.error
        assert notebook.run("print(total - 20 * epochs, epochs > 3)").printed == "0 True\n"
        pool.no_slot_is_leased_twice()
    finally:
        notebook.close()
