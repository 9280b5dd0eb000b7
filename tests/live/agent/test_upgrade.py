"""The page "Upgrade with running jobs": daemon and agent are replaced while a job runs, and it does not notice."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol.wire import ReadUsage, Used
from jupyter_elastic.types import JobStarted
from tests.live.agent.test_rigid import PLAIN
from tests.support.pool import Pool


def test_a_job_goes_on_while_daemon_and_agent_are_replaced(tmp_path: Path) -> None:
    with Pool(tmp_path / "pool", options=("--lease", "120")) as pool:
        job = pool.submit(PLAIN, names={"FOLDER": str(tmp_path)})
        pool.running(job, elastic=False)
        waits = pool.submit("print('after')", slots=2)
        pool.until(lambda: len(pool.pids(job)) == 2, "driver and worker are written down")
        living = pool.pids(job)
        done = subprocess.run(
            [sys.executable, "-P", "-m", "jupyter_elastic.cli", "backup", str(tmp_path / "before")],
            check=False, capture_output=True, text=True, env=pool.env, cwd="/", timeout=90,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        pool.kill_daemon(signal.SIGTERM)
        with sqlite3.connect(pool.folder / "journal.sqlite") as journal:  # as another version leaves it
            journal.execute("insert or replace into snapshots values (3, '0.0.9:0badcafe', x'00', 0)")
        journal.close()
        pool.start_daemon()
        assert pool.info(job).phase == "running"
        pool.kill_agent(signal.SIGTERM)
        pool.start_agent()
        assert pool.pids(job) == living
        (tmp_path / "go").touch()
        for number in (job, waits):
            assert pool.ended(number).outcome == "completed"
        assert [data.attempt for data in pool.events_of(job) if isinstance(data, JobStarted)] == [1]
        assert expect(pool.client.ask(ReadUsage()), Used).rows
        pool.no_slot_is_leased_twice()
