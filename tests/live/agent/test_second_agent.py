"""A second agent of one user, somewhere from where it sees neither the jobs' folders nor their processes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_elastic.platform import paths, private_files
from tests.support.pool import Pool

WAITS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
ELSEWHERE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _can_unshare() -> bool:
    tool = shutil.which("unshare")
    return tool is not None and subprocess.run([*ELSEWHERE, "true"], check=False, capture_output=True).returncode == 0


@contextlib.contextmanager
def second_agent(pool: Pool, folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """An agent as in a second container: other processes, other folders, the same daemon."""
    own = private_files.private_dir(folder / "second")
    hide = f'mount -t tmpfs none "{pool.jobs_dir}" && exec "$@"'
    agent = [sys.executable, "-P", "-m", "jupyter_elastic.agent", "--endpoint", pool.endpoint, *options]
    with (folder / "second.out").open("ab") as log:
        process = subprocess.Popen(
            [*ELSEWHERE, "sh", "-c", hide, "sh", *agent],
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
