"""A whole pool with the engine `process`: jobs come to their end whoever dies, and nothing is left."""

from __future__ import annotations

import signal
import stat
import time

import pytest

from jupyter_elastic.platform import processes
from jupyter_elastic.protocol.wire import ReadView, SwitchPolicy
from jupyter_elastic.types import JobProgressed, JobStarted, SlotsReleased
from tests.live.engine.bench import needs

WAIT_FOR_FILE = """
import pathlib, time
print("rank", rank, "of", world_size, "begins", flush=True)
with open(folder / f"began.{rank}", "a") as file:
    file.write("x")
while not (folder / "go").exists():
    time.sleep(0.01)
print("rank", rank, "ends", flush=True)
"""

ELASTIC = """
import time, torch
from jupyter_elastic import training
state = training.State(rounds=0)
@training.run
def train(state):
    with open(folder / f"began.{training.rank()}", "a") as file:
        file.write("x")
    while not training.total(float((folder / "go").exists())):
        state.rounds += 1
        state.commit()
        time.sleep(0.01)
train(state)
"""


@pytest.fixture
def pool(shared_pool):
    return shared_pool


def submit(pool, tmp_path, source=WAIT_FOR_FILE, *, slots=2, engine="process"):
    """A job that runs until there is a file `go` among its signals."""
    signals = tmp_path / "signals"
    signals.mkdir(exist_ok=True)
    return pool.submit(source, slots=slots, names={"folder": signals}, engine=engine), signals


def begun(signals, rank=0):
    path = signals / f"began.{rank}"
    return len(path.read_text()) if path.exists() else 0


def all_begun(pool, job, signals, times=1, ranks=2):
    pool.until(lambda: all(begun(signals, rank) >= times for rank in range(ranks)), f"job {job} begins {times} times")


def all_recorded(pool, job, attempt=1, workers=2):
    """All processes of the attempt, once its folder names them all."""
    pool.until(lambda: len(pool.pids(job, attempt)) == 1 + workers, "driver.json names all workers")
    return pool.pids(job, attempt)


def test_a_job_runs_and_leaves_nothing(pool, tmp_path):
    job, signals = submit(pool, tmp_path)
    all_begun(pool, job, signals)
    pids = all_recorded(pool, job)
    assert processes.living(pids) == pids
    (signals / "go").touch()
    assert pool.ended(job).outcome == "completed"
    assert pool.output(job, 1) == "rank 1 of 2 begins\nrank 1 ends\n"
    pool.all_gone(pids)
    assert not pool.active()


def test_everything_is_closed_to_others(pool, tmp_path):
    job = pool.submit("from jupyter_elastic import training\ntraining.report(step=1)\nx = 1", slots=2, out=("x",))
    assert pool.ended(job).outcome == "completed"
    made_by_the_test = {pool.folder / "daemon.out", pool.folder / "agent.out"}
    found = [pool.folder, pool.runtime, *pool.folder.rglob("*"), *pool.runtime.rglob("*")]
    names = {path.name for path in found}
    assert {"journal.sqlite", "agent.log", "progress.jsonl", "exit.json", "payload.msgpack", "rank.0.pickle"} <= names
    modes = {path: path.lstat().st_mode for path in found if path.exists() and path not in made_by_the_test}
    open_ = {str(path): oct(mode) for path, mode in modes.items() if not stat.S_ISSOCK(mode) and mode & 0o077}
    assert not open_


def test_an_agent_that_is_killed_is_followed_by_one_that_adopts(pool, tmp_path):
    job, signals = submit(pool, tmp_path)
    all_begun(pool, job, signals)
    pids = all_recorded(pool, job)
    pool.kill_agent()
    pool.start_agent()
    assert processes.living(pids) == pids
    (signals / "go").touch()
    assert pool.ended(job).outcome == "completed"
    assert begun(signals, 0) == begun(signals, 1) == 1
    assert len([data for data in pool.events_of(job) if isinstance(data, JobStarted)]) == 1


def test_a_driver_replaces_a_killed_agent_though_its_job_ends_at_once(pool, tmp_path):
    job, signals = submit(pool, tmp_path)
    all_begun(pool, job, signals)
    pool.kill_agent()
    (signals / "go").touch()
    assert pool.ended(job).outcome == "completed"
    assert begun(signals) == 1


def test_a_job_that_ended_while_no_agent_lived_is_told_by_the_next(pool, tmp_path):
    job, signals = submit(pool, tmp_path)
    all_begun(pool, job, signals)
    pids = all_recorded(pool, job)
    pool.kill_agent(signal.SIGTERM)
    (signals / "go").touch()
    pool.all_gone(pids)
    pool.start_agent()
    assert pool.ended(job).outcome == "completed"
    assert begun(signals) == 1


def test_a_killed_driver_costs_an_attempt_and_no_process_stays(pool, tmp_path):
    job, signals = submit(pool, tmp_path)
    all_begun(pool, job, signals)
    driver, *workers = all_recorded(pool, job)
    processes.send(driver, signal.SIGKILL)
    requeued = pool.requeued(job)
    assert requeued.cause == "lost"
    assert processes.living(workers) == []
    pool.running(job, attempt=2)
    all_begun(pool, job, signals, times=2)
    (signals / "go").touch()
    assert pool.ended(job).outcome == "completed"
    pool.all_gone(pool.pids(job, 2))


def test_driver_and_agent_killed_together(pool, tmp_path):
    job, signals = submit(pool, tmp_path)
    all_begun(pool, job, signals)
    driver, *workers = all_recorded(pool, job)
    pool.kill_agent()
    processes.send(driver, signal.SIGKILL)
    pool.start_agent()
    assert pool.requeued(job).cause == "lost"
    assert processes.living(workers) == []
    all_begun(pool, job, signals, times=2)
    (signals / "go").touch()
    assert pool.ended(job).outcome == "completed"


def test_a_killed_daemon_finds_its_jobs_again(pool, tmp_path):
    job, signals = submit(pool, tmp_path)
    all_begun(pool, job, signals)
    pids = all_recorded(pool, job)
    pool.kill_daemon()
    assert processes.living(pids) == pids
    pool.start_daemon()
    assert pool.info(job).phase == "running"
    (signals / "go").touch()
    assert pool.ended(job).outcome == "completed"
    assert begun(signals) == 1


def test_an_end_without_a_daemon_is_told_when_it_comes_back(pool, tmp_path):
    job, signals = submit(pool, tmp_path)
    all_begun(pool, job, signals)
    pids = all_recorded(pool, job)
    pool.kill_daemon()
    (signals / "go").touch()
    pool.all_gone(pids)
    pool.start_daemon()
    assert pool.ended(job).outcome == "completed"


def test_a_cancel_ends_the_processes_before_the_slots_are_free(pool, tmp_path):
    job, signals = submit(pool, tmp_path)
    all_begun(pool, job, signals)
    _, *workers = all_recorded(pool, job)
    pool.cancel(job)
    released = pool.wait_fact(job, SlotsReleased)
    assert len(processes.living(workers)) <= len(workers) - len(released.slots)
    assert pool.ended(job).outcome == "cancelled"


def test_a_job_waits_for_the_slots_of_another(pool, tmp_path):
    first, signals = submit(pool, tmp_path)
    all_begun(pool, first, signals)
    second = pool.submit("print('second')", slots=2)
    assert pool.info(second).phase == "queued"
    (signals / "go").touch()
    assert pool.ended(second).outcome == "completed"
    events = [(type(event.data), getattr(event.data, "job", None)) for event in pool.events]
    assert events.index((SlotsReleased, first)) < events.index((JobStarted, second))


@needs("torch")
def test_a_job_shrinks_for_another_and_grows_again(pool, tmp_path):
    pool.client.ask(SwitchPolicy(name="elastic_fifo", options={"cooldown": 0.0, "payback": 0.0}))
    try:
        job, signals = submit(pool, tmp_path, ELASTIC, slots=(1, 2), engine="horovod")
        all_begun(pool, job, signals)
        _, *workers = all_recorded(pool, job)
        other = tmp_path / "other"
        other.mkdir()
        second, other_signals = submit(pool, other, slots=1)
        all_begun(pool, second, other_signals, ranks=1)
        pool.running(job, generation=2)
        assert len(processes.living(workers)) == 1
        pool.kill_agent()  # a generation that was told stays told
        pool.start_agent()
        (other_signals / "go").touch()
        assert pool.ended(second).outcome == "completed"
        assert len(pool.running(job, generation=3).slots) == 2
        assert len(processes.living(all_recorded(pool, job))) == 3
        (signals / "go").touch()
        assert pool.ended(job).outcome == "completed"
    finally:
        pool.client.ask(SwitchPolicy(name="fifo"))


def test_an_engine_that_is_not_installed_fails_with_the_installed_ones(pool):
    job = pool.submit("print()", engine="warp")
    ended = pool.ended(job)
    assert ended.outcome == "failed"
    assert "process" in ended.reason
    assert "warp" in ended.reason


def test_an_interpreter_that_is_gone_fails_with_the_way_out(pool, tmp_path):
    job = pool.submit("print()", python=str(tmp_path / "bin" / "python"))
    ended = pool.ended(job)
    assert ended.outcome == "failed"
    assert "submit it again" in ended.reason


def test_a_second_agent_leaves_at_once(pool):
    first = pool.agent
    second = pool._start("agent", "jupyter_elastic.agent")
    assert second.wait(60) == 0
    assert first.poll() is None
    assert "runs already" in pool.log("agent")


def test_an_agent_killed_at_any_moment_of_a_launch_launches_once(pool, tmp_path):
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        job, signals = submit(pool, tmp_path / str(number))
        time.sleep(0.012 * number)  # somewhere between the order and the first line
        pool.kill_agent()
        pool.start_agent()
        all_begun(pool, job, signals)
        (signals / "go").touch()
        assert pool.ended(job).outcome == "completed"
        assert begun(signals, 0) == begun(signals, 1) == 1
        assert pool.info(job).attempt == 1


REPORTS = """
import time
from jupyter_elastic import training
done = 0
while not (folder / "go").exists():
    done += 100
    training.report(step=done, samples=done, total_samples=1e9, by=rank)
    time.sleep(0.05)
"""


def test_the_progress_of_independent_workers_is_learned(pool, tmp_path):
    job, signals = submit(pool, tmp_path, REPORTS, slots=2)

    def learned():
        (view,) = (one for one in pool.client.ask(ReadView()).view.jobs if one.job == job)
        return view.profile.speeds

    (speed,) = pool.until(learned, "its speed is known")
    assert speed.workers == 2
    assert {data.progress.metrics["by"] for data in pool.events_of(job) if isinstance(data, JobProgressed)} == {0.0}
    assert "it is done in about" in pool.job(job).explain()
    (signals / "go").touch()
    assert pool.ended(job).outcome == "completed"
