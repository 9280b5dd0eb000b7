"""Nodes of a Ray cluster that were added to stay are drained by Ray while a job runs there; run in namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from jupyter_elastic.protocol.wire import SwitchPolicy
from jupyter_elastic.types import WorkerDied
from tests.live.agent.test_other_hosts import check_complete, elastic, hosts, run_in_folder, steps
from tests.live.engine.ray_scenario import CLUSTER, Bare, Cluster, timed, times
from tests.live.engine.test_torch_distributed import cell
from tests.support.machines import HOME, address
from tests.support.pool import Pool

FOLDER, JOB_FOLDER = HOME / "pool", HOME / "job"
LATE = 240
DEADLINE_S = 140
"""Of the second node: 20 s until jobs leave it."""

said: dict[str, str] = {}


def drain(number: int, *options: str) -> None:
    """`ray drain-node`, as its own documentation has it."""
    [node] = [node["id"] for node in Cluster.nodes() if node["address"] == address(number)]
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address={CLUSTER}", f"--node-id={node}",
               "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot", *options]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def ended(number: int) -> bool:
    """Whether no living node of the cluster is on that machine."""
    return address(number) not in {node["address"] for node in Cluster.nodes()}


def stepped(pool: Pool, size: int) -> None:
    """Wait for a step of so many workers from now on."""
    after = time.time()

    def made() -> bool:
        return any(step["size"] == size and step["at"] > after for step in steps(JOB_FOLDER)[-5:])

    pool.until(made, f"a step of {size} workers", LATE)


def training(pool: Pool, most: int) -> int:
    """A job that trains on one to so many hosts, and takes what is free."""
    JOB_FOLDER.mkdir()
    pool.client.ask(SwitchPolicy(name="elastic_fifo", options={"cooldown": 0.0, "payback": 0.0}))
    names = {"FOLDER": str(JOB_FOLDER)}
    source = cell(step="time.sleep(0.02)")
    return pool.submit(source, engine="torch", slots=(1, most), names=names, out=("steps", "weights"))


def end(pool: Pool, job: int, ranks: set[int]) -> None:
    """Let it end: nobody has died, no step is missing."""
    (JOB_FOLDER / "stop").touch()
    assert pool.ended(job).outcome == "completed"
    check_complete(pool, job, JOB_FOLDER, ranks)
    assert not [event for event in pool.events_of(job) if isinstance(event, WorkerDied)]
    pool.no_slot_is_leased_twice()


def story(pool: Pool) -> None:
    """Grow over two nodes; one is drained without a deadline, the other with one; come to the end here."""
    said["added"] = elastic("host", "add", "cluster", f"ray://{CLUSTER}")
    pool.until(lambda: [host["slots"] for host in hosts()] == [{"free": 1}] * 3, "the hosts are seen")
    run_in_folder(pool, HOME / "lab", LATE)
    job = training(pool, 3)
    with timed("submit to a step of three hosts, cold"):
        stepped(pool, 3)
    began = time.monotonic()
    drain(2)
    stepped(pool, 2)
    times["drained without a deadline to a step without the node"] = round(time.monotonic() - began, 3)
    pool.until(lambda: ended(2), "Ray has ended the node", LATE)
    times["and to its end"] = round(time.monotonic() - began, 3)
    said["list"] = elastic("host", "list")
    stepped(pool, 2)
    began = time.monotonic()
    drain(1, f"--deadline-remaining-seconds={DEADLINE_S}")
    stepped(pool, 1)
    times[f"drained with a deadline in {DEADLINE_S} s to a step without the node"] = round(time.monotonic() - began, 3)
    assert [host["slots"] for host in hosts()[1:]] == [{"out": 1}] * 2
    end(pool, job, {0})


def main() -> None:
    machines = Bare(2)
    Cluster(machines, 2)
    os.environ["JUPYTER_ELASTIC_DIR"] = str(FOLDER)  # Ray's own processes are not of this pool
    try:
        with Pool(FOLDER, slots=1) as pool:
            story(pool)
    finally:
        sys.stdout.write(json.dumps({"times": times, "said": said}) + "\n")


if __name__ == "__main__":
    main()
