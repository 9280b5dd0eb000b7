"""The logs of a real daemon and a real agent as JSON: each line is one object, and one about a job names it."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
from pathlib import Path

from jupyter_elastic.platform import processes
from jupyter_elastic.types import JobRequeued
from tests.support.pool import Pool

JSON = ("--log-format", "json")
ABOUT_A_JOB = re.compile(r"\bjob (\d+)")


def test_every_line_of_a_run_is_an_object_and_those_about_a_job_carry_it(tmp_path: Path) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    pool = Pool(tmp_path / "pool", slots=2, options=("--lease", "3", *JSON))
    try:
        pool.start_daemon()
        pool.start_agent()  # as those that are started by need: the daemon tells it
        done = pool.submit("print('hello')")
        failed = pool.submit("1 / 0")
        assert (pool.ended(done).outcome, pool.ended(failed).outcome) == ("completed", "failed")
        lost = pool.submit("import time\ntime.sleep(600)")
        pool.running(lost)
        pool.until(lambda: len(pool.pids(lost)) == 2, "driver and worker are recorded")
        for process in pool.pids(lost):
            processes.send(process, signal.SIGSTOP)
        pool.kill_agent(signal.SIGKILL)
        pool.wait_fact(lost, JobRequeued)  # the lease ran out
        pool.until(lambda: "the agent of" in (pool.folder / "daemon.out").read_text(), "the daemon misses the agent")
        pool.kill_daemon(signal.SIGTERM)
        refused = pool._start("daemon", "jupyter_elastic.scheduler", *JSON, "--slots", "0")
        assert refused.wait(60) == 2
        said = {
            name: [json.loads(line) for line in (pool.folder / file).read_text().splitlines()]
            for name, file in (("daemon", "daemon.out"), ("agent", "agent.log"))
        }
    finally:
        pool.stop()
    for lines in said.values():
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
        for line in lines:
            if (job := ABOUT_A_JOB.search(line["message"])) is not None:
                assert (line["job"], line["user"]) == (int(job[1]), user), line
    agents = {line.get("job") for line in said["agent"]}
    assert {done, failed} <= agents
    (ran_out,) = [line for line in said["daemon"] if "lease has run out" in line["message"]]
    assert (ran_out["job"], ran_out["attempt"], ran_out["user"]) == (lost, 1, user)
    assert {line["user"] for line in said["daemon"] if line["message"].startswith("the agent of")} == {user}
    assert "--slots 0" in said["daemon"][-1]["message"]
