"""What is left of a pool when it is told to end, and of a job when its slots are free: nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from jupyter_elastic.agent import processes
from tests.support.pool import Pool

WAIT = """
import time
print("begun", flush=True)
while not (folder / "go").exists():
    time.sleep(0.01)
"""


def parents(pool):
    """The warm parents of a pool that live."""
    records = [json.loads(path.read_text())[:2] for path in pool.runtime.glob("pool-*.lock")]
    return processes.living([(pid, start) for pid, start in records])


def has_a_warm_parent(pool):
    pool.until(lambda: parents(pool), "the agent has a warm parent started")
    return parents(pool)


def run_stop(pool, *words):
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_elastic.cli", "stop", "--json", *words],
        env=pool.env, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    (said,) = json.loads(done.stdout)
    return done.returncode, said


@pytest.fixture
def pool(tmp_path):
    with Pool(tmp_path / "pool", slots=2) as started:
        yield started


def test_an_agent_that_is_told_to_end_takes_its_parents_along_but_no_job(pool, tmp_path):
    (warm, *_) = has_a_warm_parent(pool)
    job = pool.submit(WAIT, names={"folder": tmp_path})
    pool.printed(job, "begun")
    pool.until(lambda: len(pool.pids(job)) == 2, "driver.json names the worker")
    running = pool.pids(job)
    pool.kill_agent(signal.SIGTERM)
    pool.until(lambda: processes.living(running) == running, "the job goes on")
    (tmp_path / "go").touch()
    pool.all_gone([warm, *running])
    pool.until(lambda: [pid for pid, _ in pool.members()] == [pool.daemon.pid], "nothing but the daemon lives")
    pool.start_agent()
    assert pool.ended(job).outcome == "completed"


def test_stop_refuses_while_a_job_runs_and_ends_it_by_force(pool, tmp_path):
    has_a_warm_parent(pool)
    job = pool.submit(WAIT, names={"folder": tmp_path})
    pool.printed(job, "begun")
    code, said = run_stop(pool)
    assert (code, said["refused"], said["ended"]) == (1, True, [])
    assert said["jobs"] == [f"{job} (running)"]
    assert pool.info(job).phase == "running"
    code, said = run_stop(pool, "--force")
    assert code == 0
    assert said["pool"] == str(pool.folder)
    assert {f"daemon (pid {pool.daemon.pid})", f"agent (pid {pool.agent.pid})"} <= set(said["ended"])
    assert any(word.startswith("warm parent") for word in said["ended"])
    pool.until(lambda: not pool.members(), "nothing of the pool lives")
    pool.start_daemon()
    assert pool.ended(job).outcome == "cancelled"


def test_stop_without_a_daemon_finds_the_drivers(pool, tmp_path):
    job = pool.submit(WAIT, names={"folder": tmp_path})
    pool.printed(job, "begun")
    pool.until(lambda: len(pool.pids(job)) == 2, "driver.json names the worker")
    driver, *workers = pool.pids(job)
    pool.kill_agent()
    pool.kill_daemon()
    code, said = run_stop(pool)
    assert code == 1
    assert str(driver[0]) in said["jobs"][0]
    assert processes.living(workers) == workers
    code, said = run_stop(pool, "--force")
    assert code == 0
    assert f"driver (pid {driver[0]})" in said["ended"]
    pool.until(lambda: not pool.members(), "nothing of the pool lives")
    code, said = run_stop(pool)
    assert (code, said["ended"]) == (0, [])


def test_stop_all_ends_every_pool_but_those_with_jobs(pool, tmp_path, monkeypatch, capsys):
    from jupyter_elastic import connection, stop

    assert pool.runtime in connection.runtime_dirs()
    with Pool(tmp_path / "other", slots=1) as other:
        job = other.submit(WAIT, names={"folder": tmp_path})
        other.printed(job, "begun")
        # Other pools of this user are not the test's to end.
        monkeypatch.setattr(connection, "runtime_dirs", lambda: [pool.runtime, other.runtime])
        assert stop.main(["--all"]) == 1
        said = capsys.readouterr().out
        assert f"{other.folder}: left alone, 1 job(s) are not over: {job} (running)" in said
        assert f"{pool.folder}: ended agent" in said
        pool.until(lambda: not pool.members(), "nothing of the first one lives")
        assert other.info(job).phase == "running"
