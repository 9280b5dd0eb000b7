"""Every fault together: daemon, agent, drivers and workers killed with SIGKILL while jobs train, wait and end.

An elastic ring goes on, or comes back from its last commit; a plain job begins anew; short ones run exactly once. Each
worker holds a lock for a slot while it lives, so that one more worker than there are slots fails its job. Six faults by
default, 60 with JUPYTER_ELASTIC_TEST_EVERYTHING.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.platform import processes
from jupyter_elastic.protocol.wire import SwitchPolicy
from jupyter_elastic.types import ENDED, JobEnded, JobStarted
from tests.live.engine.bench import needs
from tests.support.pool import Pool

FAULTS = 60 if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else 6
SLOTS = 3
COMMIT_STEPS = 5

ONE_SLOT_EACH = f"""
import fcntl, json, os, time
from jupyter_elastic import training
def take():
    for number in range({SLOTS}):
        lock = open(f"{{FOLDER}}/slot.{{number}}", "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError:
            lock.close()
    raise RuntimeError("more workers live than there are slots")
lock = take()
"""
TRAINING = (
    ONE_SLOT_EACH
    + f"""
import torch, horovod.torch as hvd
hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(32, 4)
opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=.01), named_parameters=model.named_parameters())
@hvd.elastic.run
def train(state):
    while not state.stop:
        x = torch.randn(64, 32)
        opt.zero_grad(); ((model(x) - x[:, :4])**2).mean().backward(); opt.step()
        stop = hvd.allreduce(torch.tensor([float(os.path.exists(FOLDER + "/stop"))]), name="stop", op=hvd.Sum)
        state.step += 1
        training.report(step=state.step)
        with open(FOLDER + "/steps", "a") as file:
            file.write(json.dumps({{"step": state.step, "size": hvd.size(), "at": time.time()}}) + "\\n")
        time.sleep(.02)
        state.stop = stop.item() > 0
        if state.step % {COMMIT_STEPS} == 0: state.commit()
state = hvd.elastic.TorchState(model=model, optimizer=opt, step=0, stop=False)
train(state)
weights = float(sum(p.double().sum() for p in model.parameters()))
"""
)
PLAIN = (
    ONE_SLOT_EACH
    + """
steps = 0
while not os.path.exists(FOLDER + "/stop"):
    steps += 1
    training.report(step=steps)
    time.sleep(0.02)
"""
)
SHORT = ONE_SLOT_EACH + "with open(f'{FOLDER}/short', 'a') as file: file.write(f'{mine}\\n')\ntime.sleep(0.2)"


class Chaos:
    """A pool, the jobs in it, and the ways to hurt them."""

    def __init__(self, pool: Pool, folder: Path, seed: int) -> None:
        self.pool = pool
        self.folder = folder
        self.chance = random.Random(seed)
        names = {"FOLDER": str(folder)}
        self.training = pool.submit(TRAINING, slots=(1, 2), engine="horovod", names=names, out=("weights",))
        self.plain = pool.submit(PLAIN, names=names)
        self.shorts: list[int] = []
        self.lost = 0
        """Drivers of the plain job that were killed: it begins anew, and three in a row would be its end."""

    def submit_short(self) -> None:
        names = {"FOLDER": str(self.folder), "mine": len(self.shorts)}
        self.shorts.append(self.pool.submit(SHORT, names=names))

    def steps(self) -> list[dict[str, Any]]:
        path = self.folder / "steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def furthest(self) -> int:
        return max((step["step"] for step in self.steps()), default=0)

    def goes_on(self) -> None:
        """Wait for a step that was never made before, of which the daemon knows: losses count from there."""
        target = self.furthest() + 1

        def told() -> bool:
            progress = self.pool.info(self.training).progress
            return progress is not None and (progress.step or 0) >= target

        self.pool.until(told, f"step {target} of the training")

    def hit(self, job: int, *, driver: bool) -> None:
        """Kill the driver or one worker of a job's present attempt."""
        found = self.pool.pids(job, self.pool.info(job).attempt)
        victims = found[:1] if driver else found[1:]
        if victims:
            processes.send(self.chance.choice(victims), signal.SIGKILL)

    def lose_driver(self) -> None:
        """Kill the training's driver; it must come back no further back than its last commit."""
        attempt = self.pool.info(self.training).attempt
        self.hit(self.training, driver=True)
        self.pool.until(lambda: self.pool.info(self.training).attempt > attempt, "the training's next attempt")
        made = [step["step"] for step in self.steps()]  # by then all of the last one's processes are gone
        self.pool.until(lambda: len(self.steps()) > len(made), "the training comes back")
        resumed = min(step["step"] for step in self.steps()[len(made) :])
        assert resumed >= max(made) - COMMIT_STEPS, f"at step {max(made)} the driver died, at {resumed} it went on"

    def fault(self, what: str) -> None:
        if what == "both":
            self.hit(self.training, driver=False)
        if what in {"daemon", "both"}:
            self.pool.kill_daemon()
        if what in {"agent", "both"}:
            self.pool.kill_agent()
        time.sleep(self.chance.random() * 0.1)
        if what in {"daemon", "both"}:
            self.pool.start_daemon()
        if what in {"agent", "both"}:
            self.pool.start_agent()
        if what == "driver":
            self.lose_driver()
        if what == "worker":
            self.hit(self.training, driver=False)
        if what == "plain" and self.lost < 2:
            self.lost += 1
            self.hit(self.plain, driver=True)


@needs("torch")
@pytest.mark.timeout(1800)
def test_whoever_dies_every_job_comes_to_its_end(tmp_path: Path) -> None:
    signals = tmp_path / "signals"
    signals.mkdir()
    kinds = ["driver", "daemon", "agent", "worker", "both", "plain"]
    with Pool(tmp_path / "pool", slots=SLOTS) as pool:
        pool.client.ask(SwitchPolicy(name="elastic_fifo"))
        chaos = Chaos(pool, signals, seed=5)
        chaos.goes_on()
        for number in range(FAULTS):
            if number % len(kinds) == 0:
                chaos.chance.shuffle(kinds)
            chaos.submit_short()
            chaos.fault(kinds[number % len(kinds)])
            chaos.goes_on()
        (signals / "stop").touch()
        for job in (chaos.training, chaos.plain, *chaos.shorts):
            assert pool.ended(job).outcome == "completed"
        assert all(info.phase in ENDED for info in pool.client.jobs(all=True))
        assert {step["step"] for step in chaos.steps()} == set(range(1, chaos.furthest() + 1)), "a step is missing"
        assert len({values["weights"] for values in pool.job(chaos.training).results.values()}) == 1
        ran = [int(line) for line in (signals / "short").read_text().splitlines()]
        assert sorted(ran) == list(range(FAULTS)), "a short job did not run exactly once"
        starts = [event.data.job for event in pool.events if isinstance(event.data, JobStarted)]
        assert all(starts.count(job) == 1 for job in chaos.shorts)
        assert starts.count(chaos.plain) == 1 + chaos.lost
        ends = [event.data.job for event in pool.events if isinstance(event.data, JobEnded)]
        assert sorted(ends) == sorted([chaos.training, chaos.plain, *chaos.shorts])
        pool.no_slot_is_leased_twice()
