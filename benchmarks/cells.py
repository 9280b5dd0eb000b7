"""From executing a cell to the first line of each of two workers, as a person at a real kernel sees it.

Peers: ipyparallel's `%%px` on two running engines (warm), and `torchrun` with a script that imports torch (cold). Both
live in `.venv-peers`. Ours: `%%distribute --engine process`, whose workers are forked from the warm pool; the line is
counted when it reaches the kernel's client in whatever message. Between the two a cell of a session, whose workers
are there already; and its processor time, of the kernel and all that the pool has. Cold is the first cell of a new
kernel in a new pool, with `import torch` as torchrun's script has it: once at the moment at which `%load_ext` is
through (Run All), and once when a person has had the time to write it. Also submit to first training step on Horovod.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.manager import KernelManager

from benchmarks.harness import row
from tests.support.pool import Pool

PEERS = Path(__file__).resolve().parents[1] / ".venv-peers" / "bin"
PX_PYTHON = str(PEERS / "python")
OURS = "%%distribute --gpus 2 --engine process\nprint(f'RANK{rank}-MARK', flush=True)"
COLD = "%%distribute --gpus 2 --engine process\nimport torch\nprint(f'RANK{rank}-MARK', flush=True)"
SESSION = "%%distribute --session bench --gpus 2 --engine process\nprint(f'RANK{rank}-MARK', flush=True)"
WRITING_S = 20.0
"""How long a person takes to write a first cell."""
PAUSE_S = 0.3
"""Before a warm cell: neither side is to pay for what the other does once its cell is over."""
PROCESSOR_CELLS = 30
"""Cells whose processor time is taken together: the kernel counts it in hundredths of a second."""
PX = "%%px --stream\nprint(f'RANK{_rank}-MARK', flush=True)"
ENGINES = """
import ipyparallel as ipp
c = ipp.Cluster(n=2, log_level=40)
rc = c.start_and_connect_sync(activate=True)
rc[:].scatter('_ranks', range(2), block=True)
"""
TORCHRUN = "import os\nimport torch\nprint('RANK' + os.environ['RANK'] + '-MARK', flush=True)\n"
STEP = """
import torch, time
import horovod.torch as hvd
hvd.init()
model = torch.nn.Linear(8, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
model(torch.randn(16, 8)).sum().backward()
optimizer.step()
print(time.time(), flush=True)
"""
STEP_TORCHRUN = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(16, 8)).sum().backward()
optimizer.step()
print(f"{time.time()}\\n", end="", flush=True)  # in one piece: two ranks write at once
"""


@contextmanager
def own_pool(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a pool of two slots which the kernel in it starts itself; nobody else listens to it."""
    pool = Pool(folder, slots=2)
    try:
        yield pool.env
    finally:
        pool.stop()


@contextmanager
def kernel(python: str, env: dict[str, str]) -> Iterator[Any]:
    """A kernel of that interpreter and a client that is connected to it."""
    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec.argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(env=env)
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def until_idle(client: Any, code: str, marks: tuple[str, ...] = ()) -> float:
    """Seconds from the execute request until every mark was seen; runs on until the cell is over."""
    begun = time.perf_counter()
    number = client.execute(code)
    missing, seen_after, idle = set(marks), 0.0, False
    while missing or not idle:
        message = client.get_iopub_msg(timeout=180)
        text = json.dumps(message["content"], default=str)
        if message["msg_type"] not in {"execute_input", "status"} and missing:
            missing -= {mark for mark in missing if re.search(rf"{mark}(?!\}})", text)}
            if not missing:
                seen_after = time.perf_counter() - begun
        if message["parent_header"].get("msg_id") != number:
            continue
        if message["msg_type"] == "error":
            raise RuntimeError("\n".join(message["content"]["traceback"]))
        idle = idle or (message["msg_type"] == "status" and message["content"]["execution_state"] == "idle")
    return seen_after


def measure(rounds: int) -> list[dict[str, Any]]:
    """Warm and cold, interleaved with their peers."""
    marks = ("RANK0-MARK", "RANK1-MARK")
    with tempfile.TemporaryDirectory() as folder:
        script, steps = Path(folder, "mark.py"), Path(folder, "step.py")
        script.write_text(TORCHRUN)
        steps.write_text(STEP_TORCHRUN)
        px_env = {**os.environ, "PATH": f"{PEERS}:{os.environ['PATH']}", "IPYTHONDIR": folder}
        with (
            own_pool(Path(folder, "own")) as env,
            kernel(sys.executable, env) as ours,
            kernel(PX_PYTHON, px_env) as peer,
        ):
            until_idle(ours, "%load_ext jupyter_elastic")
            until_idle(peer, ENGINES)
            until_idle(peer, "%px _rank = _ranks[0]")
            time.sleep(WRITING_S)  # `%load_ext` has the framework imported meanwhile, which takes both processors
            for _ in range(3):
                until_idle(ours, OURS, marks)
                until_idle(ours, SESSION, marks)
                until_idle(peer, PX, marks)
            warm: list[float] = []
            stayed: list[float] = []
            px: list[float] = []
            for _ in range(max(rounds, 5) * 4):
                time.sleep(PAUSE_S)
                warm.append(until_idle(ours, OURS, marks))
                time.sleep(PAUSE_S)
                stayed.append(until_idle(ours, SESSION, marks))
                time.sleep(PAUSE_S)
                px.append(until_idle(peer, PX, marks))
            used = [processor_s(ours, SESSION, marks, "JUPYTER_ELASTIC_DIR", env["JUPYTER_ELASTIC_DIR"])]
            used_px = [processor_s(peer, PX, marks, "IPYTHONDIR", folder)]
            until_idle(peer, "c.stop_cluster_sync()")
        rows = [
            row("cell to both ranks' lines, warm", "s", warm, px, "ipyparallel %%px", "ratio <= 2"),
            row("cell of a session to both ranks' lines, warm", "s", stayed, px, "ipyparallel %%px", "ratio <= 0.5"),
            row("processor time of such a cell, all processes", "s", used, used_px, "ipyparallel %%px"),
        ]
        with Pool(Path(folder, "pool"), slots=2) as pool:
            first_steps, torchrun_steps = [], []
            pool.ended(pool.submit(STEP, slots=2, engine="horovod"))
            for _ in range(rounds):
                begun = time.time()
                job = pool.submit(STEP, slots=2, engine="horovod")
                pool.ended(job)
                first_steps.append(float(pool.output(job, 0).split()[-1]) - begun)
                torchrun_steps.append(torchrun_step(steps))
        cold: dict[float, list[float]] = {0.0: [], WRITING_S: []}
        torchrun = []
        for index in range(rounds):
            torchrun.append(torchrun_lines(script))
            for pause, took in cold.items():
                place = Path(folder, f"cold{index}.{pause:.0f}")
                with Pool(place, slots=2) as pool, kernel(sys.executable, pool.env) as client:
                    until_idle(client, "%load_ext jupyter_elastic")
                    time.sleep(pause)
                    took.append(until_idle(client, COLD, marks))
    peer_name = "torchrun + import torch"
    name = "cell to both ranks' lines, first job"
    rows.append(row(name, "s", cold[WRITING_S], torchrun, peer_name, "ratio <= 0.02"))
    rows.append(row(f"{name}, Run All", "s", cold[0.0], torchrun, peer_name))
    rows.append(row("submit to first training step", "s", first_steps, torchrun_steps, "torchrun", ""))
    rows[0]["p95"] = round(statistics.quantiles(warm, n=20)[-1], 4)
    return rows


def processor_s(client: Any, code: str, marks: tuple[str, ...], variable: str, value: str) -> float:
    """Processor seconds of a cell, as the mean of many, of all processes that have this in their environment."""

    def so_far() -> float:
        total = 0.0
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(variable) == value:
                    total += sum(process.cpu_times()[:4])  # of children that it has waited for, too
        return total

    before = so_far()
    for _ in range(PROCESSOR_CELLS):
        until_idle(client, code, marks)
        time.sleep(PAUSE_S)
    return (so_far() - before) / PROCESSOR_CELLS


def torchrun_lines(script: Path) -> float:
    """Seconds until both ranks of a torchrun have printed."""
    begun = time.perf_counter()
    process = _torchrun(script)
    seen = 0
    assert process.stdout is not None
    for line in process.stdout:
        seen += "-MARK" in line
        if seen == 2:
            took = time.perf_counter() - begun
    process.wait()
    return took


def torchrun_step(script: Path) -> float:
    """Seconds until rank 0 of a torchrun has taken a step."""
    begun = time.time()
    process = _torchrun(script)
    out, _ = process.communicate()
    return min(float(line) for line in out.split()) - begun


def _torchrun(script: Path) -> subprocess.Popen[str]:
    command = [str(PEERS / "torchrun"), "--standalone", "--nproc-per-node", "2", str(script)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{PEERS}:{os.environ['PATH']}"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
