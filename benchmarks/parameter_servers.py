"""The pause of a resize of a cluster with parameter servers, beside the same script in fresh interpreters.

One training script goes 1 worker / 1 server -> 2 / 1 -> 2 / 2 -> 1 / 1 a round, with small variables and with 128 MB of
them: from the end of the last epoch before the change to the first step after it. The peer ends all its processes and
starts each again as a new Python that imports TensorFlow; both restore the same checkpoint.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import row
from jupyter_elastic.protocol.wire import SwitchPolicy
from tests.support.pool import Pool

SHAPES = ((2, 1), (2, 2), (1, 1))
LIMIT_S = 300.0
SIZES = {"small variables": 64, "128 MB of variables": 4_000_000}
TRAINING = """
import json, os, time
import tensorflow as tf
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
shape = [len(cluster["worker"]), len(cluster["ps"])]
def note(event):
    with open(os.path.join(FOLDER, "steps"), "a") as file:
        file.write(json.dumps({"at": time.time(), "event": event, "shape": shape}) + "\\n")
strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros((ROWS, 4)))
    momentum = tf.Variable(tf.zeros((ROWS, 4)))
    epoch = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(weights=weights, momentum=momentum, epoch=epoch)
manager = tf.train.CheckpointManager(checkpoint, os.path.join(FOLDER, "checkpoints"), max_to_keep=1)
checkpoint.restore(manager.latest_checkpoint)

@tf.function
def step():
    def train():
        ids = tf.random.uniform((64,), 0, ROWS, tf.int32)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.nn.embedding_lookup(weights, ids) - 1.0) ** 2)
        gradient = tf.convert_to_tensor(tape.gradient(loss, weights))
        momentum.assign(0.9 * momentum + gradient)
        weights.assign_sub(0.1 * momentum)
    strategy.run(train)

first = True
while not os.path.exists(os.path.join(FOLDER, "stop")):
    for _ in range(5):
        coordinator.schedule(step)
        if first:
            coordinator.join()
            note("first step")
            first = False
    coordinator.join()
    epoch.assign_add(1)
    note("epoch")
    manager.save()
    boundary()
"""
OURS = "from jupyter_elastic import training\nboundary = training.boundary\n" + TRAINING
COLD = f"""
import json, os, sys, time
FOLDER, ROWS, role, index, port = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
def boundary():
    if os.path.exists(os.path.join(FOLDER, "change")):
        os._exit(0)
if role == "chief":
    exec(compile({TRAINING!r}, "training", "exec"))
    os._exit(0)
import tensorflow as tf
spec = tf.train.ClusterSpec({{role: {{index: "127.0.0.1:" + port}}}})
server = tf.distribute.Server(spec, job_name=role, task_index=index, protocol="grpc", start=True)
time.sleep(600)
"""
POLICY = """
from jupyter_elastic.types import Size
def plan(view):
    return {{job.job: Size(workers={}, servers={}) for job in view.jobs}}
"""


def measure(rounds: int) -> list[dict[str, Any]]:
    """A row for each size of the variables."""
    found = []
    for name, rows in SIZES.items():
        with tempfile.TemporaryDirectory() as place:
            ours = Steps(Path(place) / "ours")
            pauses = _ours(ours, rows, rounds)
            peer = _cold(Steps(Path(place) / "cold"), rows, max(1, rounds // 2))
        found.append(row(f"parameter servers: a resize, {name}", "s", pauses, peer, "fresh interpreters"))
    return found


class Steps:
    """What the coordinators of one training noted."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def all(self) -> list[dict[str, Any]]:
        """Every whole line."""
        path = self.folder / "steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def trained(self, shape: tuple[int, int], after: int) -> None:
        """Wait for an epoch on so many workers and servers, and another one, before which it has saved."""
        until = time.monotonic() + LIMIT_S
        epochs = {"event": "epoch", "shape": list(shape)}
        while sum(step | epochs == step for step in self.all()[after:]) < 2:
            if time.monotonic() > until:
                raise TimeoutError(f"no epochs on {shape} in {LIMIT_S:.0f} s: {self.all()[-3:]}")
            time.sleep(0.02)

    def pauses(self) -> list[float]:
        """From the last epoch before each change to the first step after it."""
        steps = self.all()
        return [
            after["at"] - before["at"]
            for before, after in itertools.pairwise(steps)
            if (before["event"], after["event"]) == ("epoch", "first step")
        ]


def _ours(steps: Steps, rows: int, rounds: int) -> list[float]:
    with Pool(steps.folder / "pool", slots=4) as pool:

        def resize(workers: int, servers: int) -> None:
            pool.client.ask(SwitchPolicy(name="fixed", source=POLICY.format(workers, servers)))

        resize(1, 1)
        names = {"FOLDER": str(steps.folder), "ROWS": rows}
        job = pool.submit(
            OURS, slots=(1, 2), engine="tensorflow_ps", names=names, out=("first",), min_servers=1, max_servers=2
        )
        steps.trained((1, 1), 0)
        _through(steps, rounds, resize)
        (steps.folder / "stop").touch()
        pool.wait(lambda: pool.info(job).phase == "completed", "its end", LIMIT_S)
    return steps.pauses()


def _cold(steps: Steps, rows: int, rounds: int) -> list[float]:
    script = steps.folder / "role.py"
    script.write_text(COLD)
    running: list[subprocess.Popen[bytes]] = []

    def end() -> None:
        for process in running:
            process.send_signal(signal.SIGKILL)
            process.wait()
        running.clear()

    def resize(workers: int, servers: int) -> None:
        if running:
            (steps.folder / "change").touch()
            running[0].wait(LIMIT_S)
            (steps.folder / "change").unlink()
        end()
        roles = {"chief": 1, "worker": workers, "ps": servers}
        ports = {role: [_port() for _ in range(count)] for role, count in roles.items()}
        cluster = {role: [f"127.0.0.1:{port}" for port in found] for role, found in ports.items()}
        for role, found in ports.items():
            for index, port in enumerate(found):
                config = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
                environment = {**os.environ, "TF_CONFIG": config, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
                words = [sys.executable, script, steps.folder, str(rows), role, str(index), str(port)]
                running.append(subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL))

    try:
        resize(1, 1)
        steps.trained((1, 1), 0)
        _through(steps, rounds, resize)
    finally:
        end()
    return steps.pauses()


def _through(steps: Steps, rounds: int, resize: Callable[[int, int], None]) -> None:
    for _ in range(rounds):
        for shape in SHAPES:
            before = len(steps.all())
            resize(*shape)
            steps.trained(shape, before)


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
