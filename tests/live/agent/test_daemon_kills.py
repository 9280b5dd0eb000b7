"""The daemon killed with SIGKILL at random moments under a ring of two, another running job and 50 queued ones.

Five times by default, 200 times with JUPYTER_ELASTIC_TEST_EVERYTHING. Meanwhile somebody goes on cancelling and
submitting, and the running jobs report ten times a second, so that there is always something in the air.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import uuid
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.client import Client
from jupyter_elastic.jobfiles.payload import create_job_folder
from jupyter_elastic.kernel import capture
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobEnded, JobRequeued, JobRunning, JobSpec, JobStarted, JobSubmitted
from tests.live.daemon.test_kills import replayed_is_live
from tests.live.engine.bench import needs
from tests.support.pool import Pool

KILLS = 200 if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else 5
QUEUED = 50
PATIENCE_S = 180.0

RING = """
import torch, horovod.torch as hvd
from jupyter_elastic import training
hvd.init()
with open(folder / f"ring.{rank}", "a") as file:
    file.write("x")
steps, through = 0, 0
while through < 2:
    steps += 1
    through = hvd.allreduce(torch.tensor([float((folder / "go").exists())]), op=hvd.Sum, name="go").item()
    training.report(step=steps)
"""
ALONE = """
import time
from jupyter_elastic import training
with open(folder / "alone", "a") as file:
    file.write("x")
steps = 0
while not (folder / "go").exists():
    steps += 1
    training.report(step=steps)
    time.sleep(0.01)
"""


def short(pool: Pool) -> JobSpec:
    """A job of one line, in a folder of its own."""
    folder = create_job_folder(capture.package("print('through')\n", {}, filename="<In[1]>").payload, pool.jobs_dir)
    return JobSpec(name="short", folder=str(folder), python=sys.executable, min_slots=1, max_slots=1, engine="process")


class Churn(threading.Thread):
    """Cancels the oldest of its queued jobs and submits another, without pause; remembers what was acknowledged."""

    def __init__(self, pool: Pool, jobs: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self.pool = pool
        self.waiting = deque(jobs.values())
        self.submitted = dict(jobs)
        self.cancelled: set[int] = set()
        self.done = threading.Event()
        self.problem: BaseException | None = None

    def run(self) -> None:
        client = Client(self.pool.endpoint, timeout_s=PATIENCE_S)
        try:
            while not self.done.is_set():
                oldest = self.waiting.popleft()
                client.ask(wire.CancelJob(job=oldest))
                self.cancelled.add(oldest)
                key = uuid.uuid4().hex
                number = self.submitted[key] = client.submit(short(self.pool), key)
                self.waiting.append(number)
        except BaseException as problem:
            self.problem = problem
        finally:
            client.close()

    def wait_for(self, more: int) -> None:
        target, limit = len(self.cancelled) + more, time.monotonic() + PATIENCE_S
        while len(self.cancelled) < target:
            assert self.problem is None, self.problem
            assert time.monotonic() < limit, "nothing is acknowledged any more"
            time.sleep(0.001)


def events_of(pool: Pool, kind: type) -> list[Any]:
    return [event.data for event in pool.events if isinstance(event.data, kind)]


@needs("torch")
@pytest.mark.timeout(3600)
def test_kills_of_the_daemon_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(11)
    signals = tmp_path / "signals"
    signals.mkdir()
    with Pool(tmp_path / "pool", slots=3) as pool:
        ring = pool.submit(RING, slots=2, engine="horovod", names={"folder": signals})
        alone = pool.submit(ALONE, names={"folder": signals})
        for job in (ring, alone):
            pool.running(job)
        keys = [uuid.uuid4().hex for _ in range(QUEUED)]
        queued = {key: pool.client.submit(short(pool), key) for key in keys}
        assert len(pool.active()) == QUEUED + 2
        pids = {job: pool.pids(job) for job in (ring, alone)}
        churn = Churn(pool, queued)
        churn.start()
        for _ in range(KILLS):
            churn.wait_for(3)
            time.sleep(chance.random() * 0.1)
            pool.kill_daemon()
            pool.start_daemon()
        churn.wait_for(3)
        churn.done.set()
        churn.join(PATIENCE_S)
        assert churn.problem is None
        assert [pool.info(job).phase for job in (ring, alone)] == ["running", "running"]
        assert {job: pool.pids(job) for job in (ring, alone)} == pids, "a running job was touched"
        assert len(pool.active()) == QUEUED + 2
        (signals / "go").touch()
        for job in [ring, alone, *churn.submitted.values()]:
            assert pool.ended(job).outcome == ("cancelled" if job in churn.cancelled else "completed")
        assert (signals / "ring.0").read_text() == (signals / "ring.1").read_text() == "x"
        assert (signals / "alone").read_text() == "x"
        nothing_is_lost_or_doubled(pool, churn)


def nothing_is_lost_or_doubled(pool: Pool, churn: Churn) -> None:
    """Every acknowledged submit once, every job one attempt and one end, no slot twice; the journal says the same."""
    listed = pool.client.ask(wire.ListJobs(all=True, limit=3000))
    live, seen = {info.job: info for info in listed.jobs}, listed.seq
    pool.wait(lambda: pool.events[-1].seq >= seen, "all events are here")
    pool.kill_daemon()
    assert [event.seq for event in pool.events] == list(range(1, len(pool.events) + 1))
    made = {event.cause: event.data.job for event in pool.events if isinstance(event.data, JobSubmitted)}
    assert len(made) == len(events_of(pool, JobSubmitted)), "a submit happened twice"
    assert {key: made.get(key) for key in churn.submitted} == churn.submitted, "an acknowledged submit was lost"
    assert not events_of(pool, JobRequeued)
    for kind in (JobStarted, JobEnded):
        jobs = [data.job for data in events_of(pool, kind)]
        assert len(set(jobs)) == len(jobs), f"{kind.__name__} twice for one job"
    assert {data.job for data in events_of(pool, JobRunning)} <= {data.job for data in events_of(pool, JobStarted)}
    assert {data.job for data in events_of(pool, JobEnded)} == set(made.values())
    pool.no_slot_is_leased_twice()
    replayed_is_live(pool.folder, live, seen)
