"""A driver for one engine, in a test: writes the job's folder, gives orders, waits for what is reported."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import cloudpickle
import msgspec
import pytest

from jupyter_elastic.driver.engine import AttemptContext, Engine
from jupyter_elastic.hostfiles.host_providers import parse
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.jobfiles.captures import PAYLOAD
from jupyter_elastic.jobfiles.payload import Payload
from jupyter_elastic.jobfiles.results import unpack
from jupyter_elastic.platform import processes
from jupyter_elastic.types import ExitReported, ReleaseReported, Report, RunningReported

PATIENCE_S = 60.0


def values(path: Path) -> dict[str, Any]:
    """What a rank has left."""
    found: dict[str, Any] = {}
    for _, data in unpack(path.read_bytes()).pickles:
        found |= cloudpickle.loads(data)
    return found


class Bench:
    """One attempt of one cell."""

    def __init__(  # noqa: PLR0913
        self,
        engine: type[Engine],
        folder: Path,
        source: str,
        *,
        names: dict[str, Any] | None = None,
        out: tuple[str, ...] = (),
        attempt: int = 1,
        min_slots: int = 1,
        warm: bool = True,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        hosts: tuple[HostAddress, ...] = (),
        **more: Any,
    ) -> None:
        self.folder = folder
        self.reports: list[Report] = []
        self.news = asyncio.Event()
        self.generation = 0
        folder.mkdir(mode=0o700, exist_ok=True)
        payload = Payload(
            source=source,
            filename="<In[1]>",
            first_line=2,
            names=cloudpickle.dumps({"FOLDER": str(folder), **(names or {})}),
            out=out,
            env={"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})},
            sys_path=tuple(sys.path),
            workdir=str(folder),
            **more,
        )
        (folder / PAYLOAD).write_bytes(msgspec.msgpack.encode(payload))
        task = AttemptContext(
            job=1, attempt=attempt, owner="me", folder=folder, python=python, runtime=folder,
            min_slots=min_slots, warm=warm, hosts=tuple(map(parse, hosts)),
        )  # fmt: skip
        self.engine = engine(task, self._report)

    def _report(self, seen: Report) -> None:
        self.reports.append(seen)
        self.news.set()

    async def launch(self, *slots: str) -> None:
        self.generation += 1
        await self.engine.launch(self.generation, slots, {})

    async def rescale(self, *slots: str) -> None:
        self.generation += 1
        await self.engine.rescale(self.generation, slots, {})

    async def until(self, what: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        """Wait until `what()` is true; looked at after each report and every few milliseconds."""
        end = time.monotonic() + patience_s
        while not (found := what()):
            assert time.monotonic() < end, self.story()
            if self.exit is not None:
                assert what(), self.story()
            self.news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.news.wait(), 0.005)
        return found

    async def running(self, generation: int | None = None) -> RunningReported:
        """Wait until this generation (the last one asked for) is reported running."""
        wanted = self.generation if generation is None else generation
        return await self.until(
            lambda: next((r for r in self.reports if isinstance(r, RunningReported) and r.generation == wanted), None)
        )

    async def ended(self, patience_s: float = PATIENCE_S) -> ExitReported:
        return await self.until(lambda: self.exit, patience_s)

    @property
    def exit(self) -> ExitReported | None:
        return next((r for r in self.reports if isinstance(r, ExitReported)), None)

    def of(self, kind: str) -> list[Any]:
        """The reports of a kind."""
        return [r for r in self.reports if type(r).__name__ == kind]

    @property
    def released(self) -> list[str]:
        return [slot for r in self.reports if isinstance(r, ReleaseReported) for slot in r.slots]

    def steps(self) -> list[dict[str, Any]]:
        """What the cells wrote with `note(...)`, in order."""
        path = self.folder / "steps"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    async def step_at(self, size: int, after: float = 0.0) -> dict[str, Any]:
        """Wait for a training step at this world size that was made after `after`."""
        return await self.until(lambda: next((s for s in self.steps() if s["size"] == size and s["at"] > after), None))

    def text(self, rank: int, stream: str = "stdout") -> str:
        path = self.folder / f"rank.{rank}" / stream
        return path.read_text() if path.exists() else ""

    def results(self) -> dict[int, Any]:
        return {
            int(path.name.split(".")[1]): values(path)
            for path in sorted((self.folder / "results").glob("rank.*.pickle"))
        }

    def kill(self, index: int) -> None:
        """SIGKILL the worker of that rank."""
        member = next(m for m in self.engine.members.values() if m.rank == index and m.process)
        member.process.send(signal.SIGKILL)

    async def close(self) -> None:
        """End whatever is left."""
        if self.exit is None:
            await self.engine.stop("cancel")
            try:
                await self.ended(15)
            except AssertionError:
                for known in self.engine.pids():
                    processes.send(known, signal.SIGKILL)
                raise

    def finish(self) -> None:
        """Tell the cell to come to its end."""
        (self.folder / "stop").touch()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def story(self) -> str:
        parts = [f"{r}" for r in self.reports]
        files = sorted(self.folder.glob("rank.*/*"))
        parts += [f"--- {path.name} of {path.parent.name}\n{path.read_text()[-3000:]}" for path in files]
        machine = getattr(self.engine, "machine", None)
        return "\n".join([*parts, f"machine: {machine}", f"steps: {self.steps()[-5:]}"])


def check_training(bench: Bench) -> None:
    """No step is missing, and all ranks came to the same end."""
    steps = {step["step"] for step in bench.steps()}
    assert steps == set(range(1, max(steps) + 1)), bench.story()
    results = bench.results()
    assert results
    assert len({(result["steps"], result["weights"]) for result in results.values()}) == 1, results


def asynchronous(test: Callable[..., Any]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def needs(framework: str) -> pytest.MarkDecorator:
    """Skip where Horovod isn't built for the framework."""
    return pytest.mark.horovod(framework)


NOTE = """
import json, os, time
def note(**words):
    with open(os.path.join(FOLDER, "steps"), "a") as file:
        file.write(json.dumps({"at": time.time(), "pid": os.getpid(), **words}) + "\\n")
def stopped():
    return os.path.exists(os.path.join(FOLDER, "stop"))
"""

TORCH = (
    NOTE
    + """
import torch, horovod.torch as hvd
hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(32, 4)
opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=.01), named_parameters=model.named_parameters())
g = torch.Generator().manual_seed(1)
@hvd.elastic.run
def train(state):
    while not state.stop:
        x = torch.randn(64, 32, generator=g)
        loss = ((model(x) - x[:, :4])**2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        stop = hvd.allreduce(torch.tensor([float(stopped())]), name="stop", op=hvd.Sum)
        state.step += 1
        note(rank=hvd.rank(), size=hvd.size(), step=state.step)
        time.sleep(.02)
        if stop.item() > 0: state.stop = True
        if state.step % 5 == 0: state.commit()
    return state.step
# a first step alone: a newcomer is ready when it has made one
model(torch.randn(64, 32)).pow(2).mean().backward(); opt.step(); opt.zero_grad()
state = hvd.elastic.TorchState(model=model, optimizer=opt, step=0, stop=False)
steps = train(state)
weights = float(sum(p.double().sum() for p in model.parameters()))
"""
)

TENSORFLOW = (
    NOTE
    + """
import tensorflow as tf, numpy as np
import horovod.tensorflow as hvd
hvd.init()
tf.random.set_seed(0)
w = tf.Variable(tf.zeros([32, 4]))
g = np.random.default_rng(1)
def gradient():
    x = tf.constant(g.standard_normal((64, 32)), tf.float32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - x[:, :4])**2)
    return hvd.DistributedGradientTape(tape).gradient(loss, [w])[0]
@hvd.elastic.run
def train(state):
    while not state.stop:
        w.assign_sub(.01 * gradient())
        stop = hvd.allreduce(tf.constant(float(stopped())), op=hvd.Sum, name="stop")
        state.step += 1
        note(rank=hvd.rank(), size=hvd.size(), step=state.step)
        time.sleep(.02)
        if float(stop) > 0: state.stop = True
        if state.step % 5 == 0: state.commit()
    return state.step
gradient()  # a first step alone: a newcomer is ready when it has made one
class Both(hvd.elastic.TensorFlowState):
    def sync(self):  # Horovod's own does not broadcast the variables in TensorFlow 2
        hvd.broadcast_variables(self.variables, root_rank=0)
        super().sync()
state = Both(variables=[w], step=0, stop=False)
steps = train(state)
weights = float(tf.reduce_sum(tf.cast(w, tf.float64)))
"""
)
