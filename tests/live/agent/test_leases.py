"""Slots come back when nobody speaks for their user any more, and nothing of the user's jobs lives then."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jupyter_elastic.platform import processes
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.types import JobEnded, JobRequeued, SlotsReleased
from tests.support.pool import Pool

EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))
WOKEN = pytest.param(True, marks=pytest.mark.skipif(not EVERYTHING, reason="15 s"))

TRAINING = """
import os, time
from jupyter_elastic import training
state = training.State(count=0)
@training.run
def train(state):
    print("from", state.count, flush=True)
    while not os.path.exists(FOLDER + "/stop"):
        state.count += 1
        state.commit()
        time.sleep(0.02)
train(state)
"""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with Pool(tmp_path / "pool", slots=2, options=("--lease", "5")) as started:
        yield started


def send(known: processes.ProcessId, number: signal.Signals) -> None:
    assert processes.send(known, number)


@pytest.mark.parametrize("woken", [False, WOKEN])
def test_slots_of_a_user_who_is_silent_come_back_and_the_jobs_go_on(pool: Pool, tmp_path: Path, woken: bool) -> None:
    """One job's processes are killed, the other's stopped, and so is the agent: nobody can say that they are gone."""
    jobs = [pool.submit(TRAINING, names={"FOLDER": str(tmp_path)}) for _ in range(2)]
    for job in jobs:
        pool.running(job)
        pool.printed(job, "from 0")
        pool.until(lambda job=job: len(pool.pids(job)) == 2, "driver and worker are recorded")
    killed, stopped = (pool.pids(job) for job in jobs)
    assert pool.agent is not None
    pool.agent.send_signal(signal.SIGSTOP)
    for process in killed:
        send(process, signal.SIGKILL)
    for process in stopped:
        send(process, signal.SIGSTOP)
    for job in jobs:
        again = pool.requeued(job)
        assert (again.cause, again.attempt) == ("lost", 1)
        assert "nothing was heard of the agent" in again.reason
        pool.wait_fact(job, SlotsReleased, attempt=1)
    assert processes.living(stopped) == []  # the kernel ended them, stopped as they were
    assert all(info.phase == "queued" for info in pool.active())
    if woken:
        pool.agent.send_signal(signal.SIGCONT)
    else:
        pool.kill_agent()
        pool.start_agent()
    for job in jobs:
        pool.running(job, attempt=2)
        pool.until(lambda job=job: pool.output(job).count("from ") == 2, "it goes on")
        assert int(pool.output(job).rsplit("from ", 1)[1].split()[0]) > 0
    (tmp_path / "stop").touch()
    for job in jobs:
        assert pool.ended(job).outcome == "completed"
        assert len([data for data in pool.events_of(job) if isinstance(data, JobRequeued)]) == 1
    pool.no_slot_is_leased_twice()


LONGER_THAN_A_LEASE_AND_ITS_GRACE = """
import os, time
print("begun", flush=True)
while not os.path.exists(FOLDER + "/killed"):
    time.sleep(0.02)
time.sleep(18)
"""


def test_drivers_replace_their_killed_agent_by_one_that_renews_their_leases(tmp_path: Path) -> None:
    with Pool(tmp_path / "pool", slots=2, options=("--lease", "12")) as pool:
        jobs = [pool.submit(LONGER_THAN_A_LEASE_AND_ITS_GRACE, names={"FOLDER": str(tmp_path)}) for _ in range(2)]
        for job in jobs:
            pool.printed(job, "begun")
        assert pool.agent is not None
        killed = pool.agent.pid
        pool.kill_agent()
        (tmp_path / "killed").touch()
        for job in jobs:
            assert pool.ended(job).outcome == "completed"
            facts = [type(data) for data in pool.events_of(job)]
            assert JobRequeued not in facts
            assert facts.count(SlotsReleased) == 1
            assert facts[-2:] == [SlotsReleased, JobEnded]
        agents = [pid for pid, _ in pool.members() if "jupyter_elastic.agent" in psutil.Process(pid).cmdline()]
        assert agents == [Lock(pool.runtime / "agent.lock").holder()]
        assert agents != [killed]
        pool.no_slot_is_leased_twice()
