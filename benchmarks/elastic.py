"""Growing, shrinking and losing a worker: how long until the next step, and how long nobody steps.

Ours: a native `hvd.elastic.run` job (torch), a `training` job on both engines (torch) and one on Horovod (TensorFlow)
in a real pool, resized by its owner's wish. Peer: torchrun 1:2 with its work-around
(`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, last call and monitor shortened), a second agent started, ended, and one worker
killed; it keeps its state in a checkpoint file.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cells import PEERS
from benchmarks.harness import row
from jupyter_elastic.protocol import wire
from tests.support.pool import Pool

TORCH = """
import json, os, time
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(32, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())

@hvd.elastic.run
def train(state):
    while not os.path.exists(stop):
        x = torch.randn(64, 32)
        optimizer.zero_grad()
        ((model(x) - x[:, :4]) ** 2).mean().backward()
        optimizer.step()
        state.step += 1
        with open(steps, "a") as file:
            file.write(json.dumps([time.time(), hvd.rank(), hvd.size(), os.getpid()]) + "\\n")
        time.sleep(0.02)
        if state.step % 5 == 0:
            state.commit()

train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))
"""
KERAS = """
import json, os, time
import keras, numpy
from jupyter_elastic import training

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(4)])
optimizer = keras.optimizers.SGD(0.01)
train_step = training.keras.train_step(model, optimizer, keras.losses.MeanSquaredError())
state = training.State(model=model, optimizer=optimizer)
x = numpy.random.default_rng(0).normal(size=(64 * 40, 32)).astype("float32")

@training.run
def train(state):
    for state.epoch in state.epochs(100_000):
        for a, b in training.batches((x, x[:, :4]), batch_size=64):
            train_step(a, b)
            with open(steps, "a") as file:
                file.write(json.dumps([time.time(), training.rank(), training.size(), os.getpid()]) + "\\n")
            time.sleep(0.02)
            if os.path.exists(stop):
                return
            state.commit()

train(state)
"""
TRAINING = """
import json, os, time
import torch
from jupyter_elastic import training

torch.manual_seed(0)
model = torch.nn.Linear(32, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = training.State(model=model, optimizer=optimizer)
x = torch.randn(64 * 40, 32)

@training.run
def train(state):
    for state.epoch in state.epochs(100_000):
        for a, b in training.batches((x, x[:, :4]), batch_size=64):
            optimizer.zero_grad()
            ((model(a) - b) ** 2).mean().backward()
            optimizer.step()
            with open(steps, "a") as file:
                file.write(json.dumps([time.time(), training.rank(), training.size(), os.getpid()]) + "\\n")
            time.sleep(0.02)
            if os.path.exists(stop):
                return
            if state.step % 5 == 0:
                state.commit()

train(state)
"""
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
LIMIT_S = 120


class Steps:
    """The steps that the workers of a job wrote down: [time, rank, size, pid]."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def all(self) -> list[list[float]]:
        """Every step so far, a half-written line left out."""
        found = []
        for line in self.path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def first(self, holds: Callable[[list[float]], bool]) -> list[float]:
        """Wait for the first step for which `holds`."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            found = next((step for step in self.all() if holds(step)), None)
            if found is not None:
                return found
            time.sleep(0.01)
        raise TimeoutError(f"no such step in {LIMIT_S} s")

    def pause(self, at: float) -> float:
        """How long nobody stepped around the first step at or after `at`."""
        before = [step[0] for step in self.all() if step[0] < at]
        return at - max(before)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Ours and the peer's, one after the other in every round."""
    ours: dict[str, list[float]] = {}
    torch: dict[str, list[float]] = {}
    horovod: dict[str, list[float]] = {}
    keras: dict[str, list[float]] = {}
    peer: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, Pool(Path(folder, "pool"), slots=2) as pool:
        pool.client.ask(wire.SwitchPolicy(name="elastic_fifo", options={"cooldown": 0}))
        for index in range(rounds):
            _ours(pool, TORCH, Path(folder, f"torch{index}"), ours, kill=True)
            _ours(pool, TRAINING, Path(folder, f"distributed{index}"), torch, kill=True, engine="torch")
            _ours(pool, TRAINING, Path(folder, f"horovod{index}"), horovod, kill=True)
            _ours(pool, KERAS, Path(folder, f"keras{index}"), keras, kill=False)
            _torchrun(Path(folder, f"peer{index}"), peer)
    name = "torchrun with its work-around"
    figures = {
        "first": "submit to first step",
        "grow": "grow 1 to 2: wish to first step",
        "grow pause": "grow 1 to 2: pause",
        "shrink": "shrink 2 to 1: wish to first step",
        "kill": "SIGKILL to next step",
    }
    return [
        row("grow 1 to 2: wish to first step", "s", ours["grow"], peer["grow"], name, "ratio <= 0.05"),
        row("grow 1 to 2: pause", "s", ours["grow pause"], peer["grow pause"], name),
        row("shrink 2 to 1: wish to first step", "s", ours["shrink"], peer["shrink"], name, "ratio <= 0.05"),
        row("shrink 2 to 1: pause", "s", ours["shrink pause"], peer["shrink pause"], name),
        row("SIGKILL to next step", "s", ours["kill"], peer["kill"], name, "ratio <= 0.02"),
        *(
            row(f"training, engine torch: {what}", "s", torch[key], horovod[key], "engine horovod")
            for key, what in figures.items()
        ),
        row("TensorFlow grow 1 to 2: pause", "s", keras["grow pause"], [], "", "<= 0.3 s"),
        row("TensorFlow grow 1 to 2: wish to first step", "s", keras["grow"], [], "", ""),
        row("TensorFlow shrink 2 to 1: wish to first step", "s", keras["shrink"], [], "", ""),
    ]


def _ours(
    pool: Pool, source: str, folder: Path, found: dict[str, list[float]], *, kill: bool, engine: str = "horovod"
) -> None:
    folder.mkdir()
    steps, stop = Steps(folder / "steps"), folder / "stop"
    names = {"steps": str(steps.path), "stop": str(stop)}
    begun = time.time()
    job = pool.submit(source, slots=(1, 1), engine=engine, names=names)
    found.setdefault("first", []).append(steps.first(lambda step: step[2] == 1)[0] - begun)

    def resize(slots: int) -> tuple[float, list[float]]:
        time.sleep(1.0)
        begun = time.time()
        pool.client.ask(wire.ResizeJob(job=job, min_slots=slots, max_slots=slots))
        return begun, steps.first(lambda step: step[0] > begun and step[2] == slots)

    for what, slots in (("grow", 2), ("shrink", 1), ("grow", 2)):
        begun, step = resize(slots)
        found.setdefault(what, []).append(step[0] - begun)
        found.setdefault(f"{what} pause", []).append(steps.pause(step[0]))
    if kill:
        pool.client.ask(wire.ResizeJob(job=job, min_slots=1, max_slots=2))
        time.sleep(1.0)
        victim = next(step for step in reversed(steps.all()) if step[1] == 1)
        begun = time.time()
        os.kill(int(victim[3]), signal.SIGKILL)
        step = steps.first(lambda step: step[0] > begun + 0.0 and step[3] != victim[3])
        found.setdefault("kill", []).append(step[0] - begun)
    stop.touch()
    pool.ended(job)


def _torchrun(folder: Path, found: dict[str, list[float]]) -> None:
    folder.mkdir()
    script, steps = folder / "train.py", Steps(folder / "steps")
    script.write_text(TORCHRUN)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {
        **os.environ, "PATH": f"{PEERS}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "STEPS": str(steps.path), "CHECKPOINT": str(folder / "checkpoint"),
    }  # fmt: skip
    conf = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"

    def agent() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(PEERS / "torchrun"), "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "50",
             "--rdzv-backend", "c10d", "--rdzv-id", "bench", "--rdzv-endpoint", f"127.0.0.1:{port}",
             "--rdzv-conf", conf, "--monitor-interval", "0.1", "--local-addr", "127.0.0.1", str(script)],
            env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    agents = [agent()]
    try:
        steps.first(lambda step: step[2] == 1)
        time.sleep(1.0)
        begun = time.time()
        agents.append(agent())
        step = steps.first(lambda step: step[2] == 2)
        found.setdefault("grow", []).append(step[0] - begun)
        found.setdefault("grow pause", []).append(steps.pause(step[0]))
        time.sleep(1.0)
        victim = next(step for step in reversed(steps.all()) if step[1] == 1)
        old = {step[3] for step in steps.all()}
        begun = time.time()
        os.kill(int(victim[3]), signal.SIGKILL)
        step = steps.first(lambda step: step[0] > begun and step[3] not in old)
        found.setdefault("kill", []).append(step[0] - begun)
        steps.first(lambda step: step[0] > begun and step[2] == 2 and step[3] not in old)
        time.sleep(1.0)
        begun = time.time()
        agents[1].terminate()
        step = steps.first(lambda step: step[0] > begun and step[2] == 1)
        found.setdefault("shrink", []).append(step[0] - begun)
        found.setdefault("shrink pause", []).append(steps.pause(step[0]))
    finally:
        for process in agents:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()
