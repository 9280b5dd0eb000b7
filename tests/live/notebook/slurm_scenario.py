"""A notebook's cell over the nodes of two allocations of Slurm's, run in namespaces by a test; prints what it found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

from tests.live.agent.test_other_hosts import elastic, hosts
from tests.live.engine.slurm_scenario import FOLDER, JOB_FOLDER, ours, timed, times
from tests.live.notebook.conftest import Notebook
from tests.live.notebook.hosts_scenario import CellOverHosts
from tests.support.pool import Pool
from tests.support.slurm import Cluster, answer


def allocated() -> str:
    """An allocation of one node; its number."""
    command = ["salloc", "--no-shell", "--nodes=1", "--exclusive", "--time=1:00:00"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()[-1]


def story(pool: Pool, notebook: Notebook, engine: str) -> None:
    """One host, two, three; a node's processes killed, an allocation cancelled, the end."""
    job = CellOverHosts(pool, notebook, JOB_FOLDER, engine)
    allocations = []
    for size in (2, 3):
        allocations.append(allocated())
        elastic("host", "add", f"slurm:{allocations[-1]}", "--slots", "1")
        with timed(f"added, to {size} hosts, cold"):
            job.stepped(size)
        job.heard(size)
    elastic("host", "drain", "h2", "--reason", "a new fan")
    with timed("3 to 2 hosts"):
        job.stepped(2)
    pool.until(lambda: hosts()[2]["slots"] == {"out": 1}, "the node is empty")
    elastic("host", "undrain", "h2")
    with timed("2 to 3 hosts"):
        job.stepped(3)
    for pid in ours(2):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with timed("all on a node killed to the next step"):
        job.stepped(2)
    with timed("that node again, cold"):
        job.stepped(3)
    job.heard(3)
    answer("scancel", allocations[1])
    with timed("an allocation cancelled to the next step"):
        job.stepped(2)
    job.end(2)
    pool.until(lambda: not ours(2), "nothing is left on the node of the allocation that has ended")


def main() -> None:
    [engine] = sys.argv[1:]
    Cluster(2)
    JOB_FOLDER.mkdir()
    try:
        os.environ["JUPYTER_ELASTIC_DIR"] = str(FOLDER)  # Slurm's own processes are not of this pool
        with Pool(FOLDER, slots=1) as pool:
            notebook = Notebook(pool)
            try:
                story(pool, notebook, engine)
            finally:
                notebook.close()
    finally:
        sys.stdout.write(json.dumps(times) + "\n")


if __name__ == "__main__":
    main()
