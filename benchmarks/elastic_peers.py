"""The peers of the elastic benchmark: torchrun, torchft and NVIDIA's in-process restart, each as its users run it.

All train the same model at the same pace on gloo. What each of them waits for by default is shortened where an option
does it: last call, monitor, heartbeat.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from benchmarks.cells import PEERS
from benchmarks.steps import Found, Steps

# torchrun ends all workers at a change and starts them anew; they keep their state in a checkpoint file.
TORCHRUN = """
import json, os, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.Linear(32, 4)
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
path, step = os.environ["CHECKPOINT"], 0
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    step = saved["step"]
while True:
    x = torch.randn(64, 32)
    optimizer.zero_grad()
    ((ddp(x) - x[:, :4]) ** 2).mean().backward()
    optimizer.step()
    step += 1
    with open(os.environ["STEPS"], "a") as file:
        file.write(json.dumps([time.time(), rank, size, os.getpid()]) + "\\n")
    time.sleep(0.02)
    if step % 5 == 0 and rank == 0:
        torch.save({"model": model.state_dict(), "step": step}, path + ".new")
        os.replace(path + ".new", path)
"""
# torchft asks its lighthouse before each step who takes part; a newcomer fetches the state from a peer. Only a step
# that all have committed counts.
TORCHFT = """
import json, os, time
from datetime import timedelta
import torch, torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), RANK="0", WORLD_SIZE="1")
model = torch.nn.Linear(32, 4)
sgd = torch.optim.SGD(model.parameters(), lr=0.01)

def load(saved):
    model.load_state_dict(saved["model"])
    sgd.load_state_dict(saved["sgd"])

manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1, hostname="127.0.0.1",
    load_state_dict=load, state_dict=lambda: {"model": model.state_dict(), "sgd": sgd.state_dict()},
)
ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, sgd)
while True:
    x = torch.randn(64, 32)
    optimizer.zero_grad()
    ((ddp(x) - x[:, :4]) ** 2).mean().backward()
    before = manager.current_step()
    optimizer.step()
    if manager.current_step() > before:
        with open(os.environ["STEPS"], "a") as file:
            who = [time.time(), manager.participating_rank(), manager.num_participants(), os.getpid()]
            file.write(json.dumps(who) + "\\n")
    time.sleep(0.02)
"""
# The wrapper calls the function anew in all living processes; one more that waits takes the place of one that died.
# Processes can't be added later, so there is no grow and no shrink. The state is in a checkpoint file.
NVRX = """
import json, os, time
from datetime import timedelta
import torch, torch.distributed as dist
from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.inprocess.rank_assignment import MaxActiveWorldSize, ShiftRanks

path, often = os.environ["CHECKPOINT"], timedelta(milliseconds=20)
store = dist.TCPStore(
    "127.0.0.1", int(os.environ["STORE_PORT"]), is_master=os.environ["RANK"] == "0", wait_for_workers=False
)

@inprocess.Wrapper(
    rank_assignment=inprocess.Compose(MaxActiveWorldSize(2), ShiftRanks()),
    monitor_thread_interval=often, monitor_process_interval=often, progress_watchdog_interval=often,
    last_call_wait=timedelta(0),
)
def train(call: inprocess.CallWrapper = None):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    round_store = dist.PrefixStore(str(call.iteration), store)
    dist.init_process_group("gloo", store=round_store, rank=rank, world_size=size)
    model, step = torch.nn.Linear(32, 4), 0
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        x = torch.randn(64, 32)
        optimizer.zero_grad()
        ((ddp(x) - x[:, :4]) ** 2).mean().backward()
        optimizer.step()
        step += 1
        with open(os.environ["STEPS"], "a") as file:
            file.write(json.dumps([time.time(), rank, size, os.getpid()]) + "\\n")
        time.sleep(0.02)
        if step % 5 == 0 and rank == 0:
            torch.save({"model": model.state_dict(), "step": step}, path + ".new")
            os.replace(path + ".new", path)

train()
"""


class Processes:
    """The processes of one run of a peer."""

    def __init__(self, **env: str) -> None:
        path = f"{PEERS}:{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **env}
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, **env: str) -> subprocess.Popen[bytes]:
        """Start a command of `.venv-peers`."""
        process = subprocess.Popen(
            [str(PEERS / command[0]), *command[1:]], env=self.env | env,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.running.append(process)
        return process

    def end(self) -> None:
        """Kill all of them with their children."""
        for process in self.running:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
            process.kill()
            process.wait()


def installed(module: str) -> bool:
    """Whether `.venv-peers` has a peer; says so where it has not."""
    command = [str(PEERS / "python"), "-W", "ignore", "-c", f"import {module}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"  no {module} in .venv-peers, so it is left out: {done.stderr.strip().splitlines()[-1]}", flush=True)
    return done.returncode == 0


def torchrun(folder: Path, found: Found) -> None:
    """torchrun 1:2 with its work-around: a second agent is started, one worker killed, the second agent ended."""
    with _run(folder, TORCHRUN, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1") as (script, steps, processes):
        port = _free_port()

        def agent() -> subprocess.Popen[bytes]:
            return processes.start(
                "torchrun", "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "50",
                "--rdzv-backend", "c10d", "--rdzv-id", "bench", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf",
                "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3",
                "--monitor-interval", "0.1", "--local-addr", "127.0.0.1", script,
            )  # fmt: skip

        _start(agent, steps, found)
        second = _grow(agent, steps, found)
        steps.kill(found)
        _shrink(second, steps, found)


def torchft(folder: Path, found: Found) -> None:
    """torchft with a lighthouse: a second replica is started, killed, started again at once, ended."""
    port = _free_port()
    with _run(folder, TORCHFT, TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{port}") as (script, steps, processes):
        processes.start(
            "torchft_lighthouse", "--bind", f"127.0.0.1:{port}", "--min_replicas", "1",
            "--join_timeout_ms", "100", "--quorum_tick_ms", "20", "--heartbeat_timeout_ms", "500",
        )  # fmt: skip

        def replica() -> subprocess.Popen[bytes]:
            return processes.start("python", "-W", "ignore", script)

        _start(replica, steps, found)
        victim = _grow(replica, steps, found)
        time.sleep(1.0)
        begun, old = time.time(), steps.pids()
        victim.kill()
        second = replica()
        steps.after_kill(begun, old, found)
        _shrink(second, steps, found)


def nvrx(folder: Path, found: Found) -> None:
    """NVIDIA's in-process restart: three processes, two of them train, one of these is killed."""
    ports = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "STORE_PORT": str(_free_port())}
    with _run(folder, NVRX, WORLD_SIZE="3", **ports) as (script, steps, processes):
        for rank in range(3):
            processes.start("python", "-W", "ignore", script, RANK=str(rank))
        steps.first(lambda step: step[1] == 1)
        steps.kill(found)


# Name in the table -> what must be there to import, and what measures one round.
RUNS = {
    "torchrun": ("torch", torchrun),
    "torchft": ("torchft", torchft),
    "in-process restart": ("nvidia_resiliency_ext.inprocess", nvrx),
}


@contextlib.contextmanager
def _run(folder: Path, source: str, **env: str) -> Iterator[tuple[str, Steps, Processes]]:
    folder.mkdir()
    script, steps = folder / "train.py", Steps(folder / "steps")
    script.write_text(source)
    processes = Processes(STEPS=str(steps.path), CHECKPOINT=str(folder / "checkpoint"), **env)
    try:
        yield str(script), steps, processes
    finally:
        processes.end()


def _start(start: Callable[[], object], steps: Steps, found: Found) -> None:
    begun = time.time()
    start()
    found.setdefault("first", []).append(steps.first(lambda step: step[2] == 1)[0] - begun)


def _grow(start: Callable[[], subprocess.Popen[bytes]], steps: Steps, found: Found) -> subprocess.Popen[bytes]:
    time.sleep(1.0)
    begun = time.time()
    process = start()
    step = steps.first(lambda step: step[0] > begun and step[2] == 2)
    found.setdefault("grow", []).append(step[0] - begun)
    found.setdefault("grow pause", []).append(steps.pause(step[0]))
    return process


def _shrink(process: subprocess.Popen[bytes], steps: Steps, found: Found) -> None:
    time.sleep(1.0)
    begun = time.time()
    process.terminate()
    step = steps.first(lambda step: step[0] > begun and step[2] == 1)
    found.setdefault("shrink", []).append(step[0] - begun)
    found.setdefault("shrink pause", []).append(steps.pause(step[0]))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
