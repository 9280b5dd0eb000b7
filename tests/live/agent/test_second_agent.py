"""A second agent of one user, somewhere from where it sees neither the jobs' folders nor their processes."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_elastic.platform import paths, private_files
from jupyter_elastic.types import JobRequeued, SlotsReleased
from tests.support.guests import opened
from tests.support.pool import Pool

WAITS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
COUNTS = """
import os, time
from jupyter_elastic import training
state = training.State(count=0)
@training.run
def train(state):
    print("from", state.count, "in", os.readlink("/proc/self/ns/pid"), flush=True)
    while not os.path.exists(FOLDER + "/stop"):
        state.count += 1
        state.commit()
        time.sleep(0.02)
train(state)
"""
ELSEWHERE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _can_unshare() -> bool:
    tool = shutil.which("unshare")
    return tool is not None and subprocess.run([*ELSEWHERE, "true"], check=False, capture_output=True).returncode == 0


@contextlib.contextmanager
def second_agent(pool: Pool, folder: Path, *options: str, hide: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """An agent as in a second container: other processes, other folders, the same daemon.

    With `hide` it does not see the folders of the jobs either.
    """
    own = private_files.private_dir(folder / "second")
    begin = f'mount -t tmpfs none "{pool.jobs_dir}" && exec "$@"' if hide else 'exec "$@"'
    agent = [sys.executable, "-P", "-m", "jupyter_elastic.agent", "--endpoint", pool.endpoint, *options]
    with (folder / "second.out").open("ab") as log:
        process = subprocess.Popen(
            [*ELSEWHERE, "sh", "-c", begin, "sh", *agent],
            env={**pool.env, paths.DIR_VARIABLE: str(own)},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(paths.runtime_dir_of(own), ignore_errors=True)


def log(folder: Path) -> str:
    path = folder / "second" / "agent.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.skipif(not _can_unshare(), reason="namespaces can't be made here")
def test_a_second_agent_is_told_so_and_frees_nothing(lasting_pool: Pool, tmp_path: Path) -> None:
    pool = lasting_pool
    job = pool.submit(WAITS, slots=2)
    pool.running(job)
    pool.printed(job, "begun")
    workers = pool.pids(job)
    with second_agent(pool, tmp_path):
        pool.until(lambda: "is another one" in log(tmp_path) or pool.info(job).phase == "failed", "it is told")
        assert pool.info(job).phase == "running"
        pool.cancel(job)  # and the order goes to the first, which obeys
        assert pool.ended(job).outcome == "cancelled"
        pool.all_gone(workers)


@pytest.mark.skipif(not _can_unshare(), reason="namespaces can't be made here")
def test_it_takes_over_after_the_term_of_one_that_is_stopped_which_is_fenced_when_it_wakes(
    tmp_path: Path, who: str
) -> None:
    with opened(Pool(tmp_path / "pool", slots=1, options=("--lease", "3")), who) as pool:
        job = pool.submit(COUNTS, names={"FOLDER": str(tmp_path)})
        pool.printed(job, "from 0")
        waits = pool.submit("print('its turn')", slots=1)
        assert pool.agent is not None
        with second_agent(pool, tmp_path, "--idle", "1", hide=False):
            pool.until(lambda: "is another one" in log(tmp_path), "it is told")
            pool.agent.send_signal(signal.SIGSTOP)
            again = pool.requeued(job)
            assert "nothing was heard of the agent" in again.reason
            pool.until(lambda: pool.output(job).count("from ") == 2, "it goes on elsewhere")
            (_, first), (count, second) = (line.split()[1::2] for line in pool.output(job).splitlines())
            assert int(count) > 0
            assert first != second
            pool.agent.send_signal(signal.SIGCONT)
            pool.until(lambda: "this agent waits" in pool.log("agent"), "the first is fenced")
            (tmp_path / "stop").touch()
            assert pool.ended(job).outcome == "completed"
            assert pool.ended(waits).outcome == "completed", "no job waits for an agent that has gone"
        assert [data.attempt for data in pool.events_of(job) if isinstance(data, JobRequeued)] == [1]
        assert [data.attempt for data in pool.events_of(job) if isinstance(data, SlotsReleased)] == [1, 2]
        pool.no_slot_is_leased_twice()
