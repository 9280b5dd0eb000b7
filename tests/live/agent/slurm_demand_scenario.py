"""A pool whose hosts come from Slurm when the queue needs them, run in namespaces by a test; prints what it found."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from jupyter_elastic.hostfiles import hosts_on_demand
from jupyter_elastic.hosts.providers import slurm
from tests.live.agent.test_other_hosts import elastic, hosts
from tests.live.engine.slurm_scenario import FOLDER, said, timed, times
from tests.support.pool import Pool
from tests.support.slurm import Cluster, answer

ADD = ("host", "add", "slurm:auto", "--time-limit", "1h", "--max-hosts", "2", "--idle", "15s", "--sbatch=--exclusive")
LATE = 120


def queue() -> list[str]:
    """What waits or runs in Slurm."""
    return answer("squeue", "--noheader", "--format=%T").split()


def refusals() -> None:
    said["no limit"] = elastic("host", "add", "slurm:auto", "--max-hosts", "2", code=1)
    said["no partition"] = elastic(*ADD, "--partition", "none", code=1)
    said["too much"] = elastic(*ADD[:-1], "--sbatch=--exclusive --mem=9000G", code=1)
    said["dry run"] = elastic(*ADD, "--dry-run")
    assert not queue()
    assert len(hosts()) == 1


def story(pool: Pool) -> None:
    """A job that is too large for the pool brings two nodes, which go when they are idle; then nobody answers there."""
    refusals()
    said["added"] = elastic(*ADD)
    pool.until(lambda: [sum(host["slots"].values()) for host in hosts()] == [1, 4], "what could come is shown")
    said["list before"] = elastic("host", "list")
    time.sleep(12)
    assert not queue()  # nobody needs them
    job = pool.submit("import time; time.sleep(20); print('here', rank, world_size)", slots=5)
    with timed("submit to two nodes"):
        pool.until(lambda: len([host for host in hosts() if host["until"]]) == 2, "both nodes are hosts", LATE)
    said["list with them"] = elastic("host", "list")
    assert queue() == ["RUNNING"] * 2
    assert pool.ended(job).outcome == "completed"
    assert sorted(pool.output(job, rank) for rank in range(5)) == [f"here {rank} 5\n" for rank in range(5)]
    with timed("end of the job to an empty queue of Slurm's (15 s idle)"):
        pool.until(lambda: not queue(), "they are given back", LATE)
    pool.until(lambda: len(hosts()) == 2, "they are no hosts any more")
    failing = FOLDER / "python"
    failing.write_text("#!/bin/sh\necho the disk is broken >&2; exit 1\n")
    failing.chmod(0o700)
    elastic(*ADD, "--python", str(failing))
    job = pool.submit("print('here')", slots=2)
    with timed("three failed starts"):
        pool.until(lambda: hosts_on_demand.statuses(FOLDER)["slurm-auto"].paused, "it is paused", LATE)
    pool.until(lambda: "paused" in hosts()[1]["out"], "that is shown")
    said["paused"] = elastic("host", "list")
    time.sleep(10)
    assert not queue()
    elastic(*ADD)
    assert pool.ended(job).outcome == "completed"
    said["removed"] = elastic("host", "remove", "slurm:auto")
    pool.until(lambda: not queue() and len(hosts()) == 1, "all are given back", LATE)
    assert not slurm.allocations(["1"])


def main() -> None:
    Cluster(2)
    try:
        os.environ["JUPYTER_ELASTIC_DIR"] = str(FOLDER)  # Slurm's own processes are not of this pool
        with Pool(FOLDER, slots=1) as pool:
            try:
                story(pool)
            finally:
                said["status"] = str(hosts_on_demand.statuses(Path(FOLDER)))
                sys.stderr.write(f"{said['status']}\n{pool.log('agent')}\n")
    finally:
        sys.stdout.write(json.dumps({"times": times, "said": said}) + "\n")


if __name__ == "__main__":
    main()
