"""What is left of a pool when it is told to end, and of a job when its slots are free: nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jupyter_elastic.forkserver import parents
from jupyter_elastic.platform import processes
from jupyter_elastic.types import SlotsReleased
from tests.support.pool import Pool

WAIT = """
import time
print("begun", flush=True)
while not (folder / "go").exists():
    time.sleep(0.01)
"""


def has_a_warm_parent(pool):
    def found():
        return [parent.known for parent in parents.found(pool.runtime, kinds=(parents.WORKERS,))]

    return pool.until(found, "the agent has a warm parent started")


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
    from jupyter_elastic.cli import stop_command
    from jupyter_elastic.platform import paths

    assert pool.runtime in paths.runtime_dirs()
    with Pool(tmp_path / "other", slots=1) as other:
        job = other.submit(WAIT, names={"folder": tmp_path})
        other.printed(job, "begun")
        # Other pools of this user are not the test's to end.
        monkeypatch.setattr(paths, "runtime_dirs", lambda: [pool.runtime, other.runtime])
        assert stop_command.main(["--all"]) == 1
        said = capsys.readouterr().out
        assert f"{other.folder}: left alone, 1 job(s) are not over: {job} (running)" in said
        assert f"{pool.folder}: ended agent" in said
        pool.until(lambda: not pool.members(), "nothing of the first one lives")
        assert stop_command.main(["--all", "--force"]) == 1  # nobody is there to be asked
        assert other.info(job).phase == "running"
        capsys.readouterr()
        assert stop_command.main(["--all", "--force", "--yes"]) == 0
        assert f"jobs: {job} (running)" in capsys.readouterr().out


def test_a_parent_is_kept_for_whoever_packaged_the_cell(warm):
    (parent, *_) = has_a_warm_parent(warm)
    assert warm.ended(warm.submit("print(rank)")).outcome == "completed"

    def waits_for():
        """The processes whose ends a process waits for, by its handles of them (pidfd)."""
        lines = []
        for path in Path(f"/proc/{parent[0]}/fdinfo").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has just closed that one
                lines += path.read_text().splitlines()
        return {int(line.split()[1]) for line in lines if line.startswith("Pid:")}

    warm.until(lambda: {os.getpid(), warm.agent.pid} <= waits_for(), "it waits for us and for the agent")


LEAVE_BEHIND = """
import multiprocessing, os, signal, subprocess, sys, time

def note(name):
    (folder / f".{name}.{rank}").write_text(str(os.getpid()))
    (folder / f".{name}.{rank}").rename(folder / f"pid.{name}.{rank}")

def sleep(name, stubborn=False):
    if stubborn:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    os.closerange(0, 1000)
    note(name)
    time.sleep(600)
    os._exit(0)

def daemonise(name, stubborn=False):
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    sleep(name, stubborn)

daemonise("daemon")
daemonise("stubborn", stubborn=True)
multiprocessing.get_context("fork").Process(target=sleep, args=("multiprocessing",), daemon=True).start()
shell = f"echo $$ > {folder}/.nohup.{rank}; mv {folder}/.nohup.{rank} {folder}/pid.nohup.{rank}; sleep 600; true"
subprocess.run(f"nohup setsid sh -c '{shell}' > /dev/null 2>&1 &", shell=True)
subprocess.Popen(["sh", "-c", shell.replace("nohup", "popen")], start_new_session=True)
print("begun", flush=True)
while not (folder / "go").exists():
    time.sleep(0.01)
if (folder / "raise").exists():
    raise SystemExit("as it was told to")
"""
NAMES = ("daemon", "stubborn", "multiprocessing", "nohup", "popen")


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    with Pool(tmp_path_factory.mktemp("warm") / "pool", slots=2) as started:
        has_a_warm_parent(started)
        yield started


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    with Pool(tmp_path_factory.mktemp("cold") / "pool", slots=2, env={"JUPYTER_ELASTIC_WARM": "0"}) as started:
        yield started


def forgotten(pool, folder, ranks):
    """The processes that the cells have left behind, once all are there."""
    paths = [folder / f"pid.{name}.{rank}" for name in NAMES for rank in range(ranks)]
    pool.until(lambda: all(path.exists() for path in paths), f"all of {paths} are there")
    return [processes.identify(int(path.read_text())) for path in paths]


@pytest.mark.parametrize("how", ["through", "raises", "cancelled", "worker killed", "driver killed"])
@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_nothing_of_a_job_lives_when_its_slots_are_free(kind, how, tmp_path, request):
    pool = request.getfixturevalue(kind)
    job = pool.submit(LEAVE_BEHIND, slots=2, names={"folder": tmp_path})
    left = forgotten(pool, tmp_path, ranks=2)
    assert processes.living(left) == left
    pool.until(lambda: len(pool.pids(job)) == 3, "driver.json names the workers")
    driver, first, _ = pool.pids(job)
    if how == "cancelled":
        pool.cancel(job)
    elif how == "driver killed":
        processes.send(driver, signal.SIGKILL)
    elif how == "worker killed":
        processes.send(first, signal.SIGKILL)
    else:
        if how == "raises":
            (tmp_path / "raise").touch()
        (tmp_path / "go").touch()
    pool.wait_fact(job, SlotsReleased)
    assert not processes.living(left)
    (tmp_path / "go").touch()
    pool.cancel(job)
    pool.ended(job)


def test_the_agent_removes_what_was_captured_for_jobs_that_are_long_over(warm, tmp_path):
    big = bytes(1_000_000)
    jobs = [warm.submit("print(len(data))", names={"data": big}) for _ in range(2)]
    busy = warm.submit(WAIT, slots=2, names={"folder": tmp_path})
    queued = warm.submit("print(len(data))", names={"data": big})
    assert all(warm.ended(job).outcome == "completed" for job in jobs)
    warm.printed(busy, "begun")
    two_days_ago = time.time() - 2 * 86_400
    old, young = (warm.job_folder(job) for job in jobs)
    os.utime(old / "attempt.1" / "exit.json", (two_days_ago, two_days_ago))
    os.utime(warm.job_folder(queued), (two_days_ago, two_days_ago))
    warm.kill_agent()
    warm.start_agent()
    warm.until(lambda: not (old / "payload.msgpack").exists(), "the agent has removed it")
    assert (old / "rank.0" / "stdout").read_text() == "1000000\n"
    assert (young / "payload.msgpack").exists()
    (tmp_path / "go").touch()
    assert warm.ended(queued).outcome == "completed"
    assert warm.output(queued) == "1000000\n"
