"""A pool whose hosts come from Ray's autoscaler when the queue needs them, run in namespaces by a test."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_elastic.hostfiles import hosts_on_demand
from tests.live.agent.ray_drain_scenario import drain, end, stepped, training
from tests.live.agent.test_other_hosts import elastic, hosts
from tests.live.engine.ray_scenario import Bare, timed, times
from tests.support import ray_node
from tests.support.machines import HOME, Machines, address, command
from tests.support.pool import Pool

FOLDER = HOME / "pool"
CLUSTER = f"ray://{address(0)}:6379"
ADD = ("host", "add", "cluster", CLUSTER)
DEMAND = (*ADD, "--max-hosts", "2", "--bundle", '{"CPU": 1}', "--idle", "15s")
CONFIG: dict[str, Any] = {
    "cluster_name": "test",
    "max_workers": 2,
    "idle_timeout_minutes": 0.2,
    "upscaling_speed": 1.0,
    "provider": {
        "type": "external",
        "module": "tests.support.ray_provider.Machines",
        "machines": 2,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
        "foreground_node_launch": True,
    },
    "auth": {},
    "available_node_types": {
        "head": {"resources": {"CPU": 0}, "node_config": {}, "min_workers": 0, "max_workers": 0},
        "worker": {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    },
    "head_node_type": "head",
    "file_mounts": {},
    "cluster_synced_files": [],
    "file_mounts_sync_continuously": False,
    "initialization_commands": [],
    "setup_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
    "rsync_exclude": [],
    "rsync_filter": [],
}
LATE = 240

said: dict[str, str] = {}


def ray_on(number: int) -> bool:
    """Whether Ray runs on a machine."""
    return bool(Machines.pids(number))


def refusals() -> None:
    said["no bundle"] = elastic(*ADD, "--max-hosts", "2", code=1)
    said["no number"] = elastic(*ADD, "--bundle", '{"CPU": 1}', code=1)
    said["no JSON"] = elastic(*ADD, "--max-hosts", "2", "--bundle", "CPU=1", code=1)
    said["no slot"] = elastic(*ADD, "--max-hosts", "2", "--bundle", '{"memory": 1}', code=1)
    said["time limit"] = elastic(*DEMAND, "--time-limit", "1h", code=1)
    said["no cluster"] = elastic("host", "add", "c", f"ray://{address(0)}:6380", *DEMAND[4:], code=1)
    said["dry run"] = elastic(*DEMAND, "--dry-run")
    assert len(hosts()) == 1


def story(pool: Pool) -> None:
    """A job that is too large for the pool brings a second node of the cluster, which goes when it is idle."""
    refusals()
    said["added"] = elastic(*DEMAND)
    pool.until(lambda: [sum(host["slots"].values()) for host in hosts()] == [1, 2], "what could come is shown")
    time.sleep(12)
    assert not ray_on(1)  # nobody needs it
    job = pool.submit("import time; time.sleep(20); print('here', rank, world_size)", slots=2)
    with timed("submit to a second node of the cluster"):
        pool.until(lambda: any(host["name"].startswith("cluster-") for host in hosts()), "it is a host", LATE)
    said["list"] = elastic("host", "list", "--json")
    pool.until(lambda: job not in [info.job for info in pool.active()], "it ends", LATE)
    assert pool.ended(job).outcome == "completed"
    assert sorted(pool.output(job, rank) for rank in range(2)) == [f"here {rank} 2\n" for rank in range(2)]
    assert not ray_on(2)
    with timed("end of the job until Ray's autoscaler has ended the node (15 s idle, and 12 s of Ray's)"):
        pool.until(lambda: not ray_on(1), "it is given back", LATE)
    pool.until(lambda: len(hosts()) == 2, "it is no host any more")
    drained(pool)
    said["removed"] = elastic("host", "remove", "cluster")
    pool.until(lambda: len(hosts()) == 1, "nothing more can come")


def drained(pool: Pool) -> None:
    """Ray drains a node that has come, under a job, which goes on without it; the other one comes in its place."""
    job = training(pool, 2)
    with timed("submit of an elastic job to a step with a second node"):
        stepped(pool, 2)
    [number] = [number for number in (1, 2) if ray_on(number)]
    drain(number)
    with timed("the node drained to a step without it"):
        stepped(pool, 1)
    there = f"cluster-{address(number)}-"
    with timed("and until Ray has the node's group back"):
        pool.until(lambda: not any(host["name"].startswith(there) for host in hosts()), "it is no host", LATE)
    with timed("and to a step with the other node"):
        stepped(pool, 2)
    end(pool, job, {0, 1})


def main() -> None:
    Bare(2)
    os.environ["RAY_TMPDIR"] = "/tmp"  # each machine has an own one there
    Path("/tmp/ray").mkdir(exist_ok=True)
    command("mount", "-t", "tmpfs", "none", "/tmp/ray")
    config = HOME / "cluster.yaml"
    config.write_text(json.dumps(CONFIG))
    os.environ |= {"RAY_NODE_AUTOSCALING": str(config), "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    command(sys.executable, ray_node.__file__, address(0), "0")
    del os.environ["RAY_NODE_AUTOSCALING"]
    os.environ["JUPYTER_ELASTIC_DIR"] = str(FOLDER)  # Ray's own processes are not of this pool
    try:
        with Pool(FOLDER, slots=1) as pool:
            try:
                story(pool)
            finally:
                sys.stderr.write(f"{hosts_on_demand.statuses(FOLDER)}\n{pool.log('agent')}\n")
    finally:
        for log in Path("/tmp/ray").glob("session_*/logs/monitor*"):
            sys.stderr.write(f"--- {log.name}\n{log.read_text()[-6000:]}\n")
        sys.stdout.write(json.dumps({"times": times, "said": said}) + "\n")


if __name__ == "__main__":
    main()
