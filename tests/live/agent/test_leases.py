"""Slots come back when nobody speaks for their user any more, and nothing of the user's jobs lives then."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from jupyter_elastic.platform import processes
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.types import JobEnded, JobRequeued, SlotsReleased
from tests.support.guests import opened
from tests.support.pool import LIMIT_S, Pool

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
def pool(tmp_path: Path, who: str) -> Iterator[Pool]:
    with opened(Pool(tmp_path / "pool", options=("--lease", "5")), who) as started:
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


@pytest.mark.skipif(not EVERYTHING, reason="14 s")
def test_a_driver_that_is_stopped_gives_its_slots_back_while_its_agent_lives_on(pool: Pool, tmp_path: Path) -> None:
    """The agent goes on renewing all that it knows, the stopped one too."""
    stuck, other = (pool.submit(TRAINING, names={"FOLDER": str(tmp_path)}) for _ in range(2))
    for job in (stuck, other):
        pool.printed(job, "from 0")
        pool.until(lambda job=job: len(pool.pids(job)) == 2, "driver and worker are recorded")
    processes_of_it = pool.pids(stuck)
    for process in processes_of_it:
        send(process, signal.SIGSTOP)
    pool.cancel(stuck)
    assert pool.ended(stuck).outcome == "cancelled"
    pool.wait_fact(stuck, SlotsReleased, attempt=1)
    assert processes.living(processes_of_it) == [], "the kernel has ended them, stopped as they were"
    goes_on_to_its_end(pool, other, tmp_path)


@pytest.fixture
def frozen() -> Iterator[Callable[[processes.ProcessId], None]]:
    """Freezes a process as a hung file system does: not even SIGKILL ends it, until the test is over."""
    group = Path(f"/sys/fs/cgroup/freezer/elastic-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("there are no control groups here that freeze (version 1, as root)")
    known: list[processes.ProcessId] = []

    def freeze(process: processes.ProcessId) -> None:
        known.append(process)
        (group / "cgroup.procs").write_text(str(process[0]))
        (group / "freezer.state").write_text("FROZEN")

    yield freeze
    (group / "freezer.state").write_text("THAWED")
    for process in known:
        processes.send(process, signal.SIGKILL)
    limit = time.monotonic() + LIMIT_S
    while (group / "cgroup.procs").read_text() and time.monotonic() < limit:
        time.sleep(0.01)
    group.rmdir()


def test_a_worker_that_nothing_ends_does_not_keep_its_slot(
    pool: Pool, tmp_path: Path, frozen: Callable[[processes.ProcessId], None]
) -> None:
    stuck, other = (pool.submit(TRAINING, names={"FOLDER": str(tmp_path)}) for _ in range(2))
    for job in (stuck, other):
        pool.printed(job, "from 0")
        pool.until(lambda job=job: len(pool.pids(job)) == 2, "driver and worker are recorded")
    worker = pool.pids(stuck)[1]
    frozen(worker)
    pool.cancel(stuck)
    ended = pool.ended(stuck)
    assert ended.outcome == "cancelled"
    assert re.fullmatch(
        r"by the test; it had not ended \d+ s after it was to; something of it may still run", ended.reason
    )
    pool.wait_fact(stuck, SlotsReleased, attempt=1)
    assert processes.living([worker]) == [worker]
    goes_on_to_its_end(pool, other, tmp_path)


def goes_on_to_its_end(pool: Pool, job: int, folder: Path) -> None:
    """The other job of the same agent, which nothing has happened to."""
    (folder / "stop").touch()
    assert pool.ended(job).outcome == "completed"
    assert not [data for data in pool.events_of(job) if isinstance(data, JobRequeued)]
    pool.no_slot_is_leased_twice()


LONGER_THAN_A_LEASE_AND_ITS_GRACE = """
import os, time
print("begun", flush=True)
while not os.path.exists(FOLDER + "/killed"):
    time.sleep(0.02)
time.sleep(18)
"""


def test_drivers_replace_their_killed_agent_by_one_that_renews_their_leases(tmp_path: Path, who: str) -> None:
    with opened(Pool(tmp_path / "pool", options=("--lease", "12")), who) as pool:
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
