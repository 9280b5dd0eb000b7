"""Starts a node of Ray on this machine: `python ray_node.py ADDRESS CPUS [GCS]`, without GCS the cluster's head.

A head with `RAY_NODE_AUTOSCALING`, the path of a cluster's configuration, has an autoscaler too.

It does what `ray start` does, but leaves out what nobody here asks (dashboard, autoscaler, monitor of the logs; each is
an interpreter of its own), and gives the rest longer than the 15 s and 30 s that Ray gives itself.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from ray._private import services, utils
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._raylet import (
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    persist_port,
)

START_S = 240.0
PORTS = (METRICS_AGENT_PORT_NAME, METRICS_EXPORT_PORT_NAME, DASHBOARD_AGENT_LISTEN_PORT_NAME)
"""Of what looks after a node: it has none of them in Ray's smallest installation."""


def main() -> None:
    address, cpus, *gcs = sys.argv[1:]
    params = RayParams(
        node_ip_address=address,
        num_cpus=int(cpus),
        object_store_memory=100_000_000,
        include_dashboard=False,
        include_log_monitor=False,
        no_monitor=True,
        min_worker_port=0,
        max_worker_port=0,
        runtime_env_agent_port=6404,
    )
    params.update(**({"gcs_address": gcs[0], "redis_address": gcs[0]} if gcs else {"gcs_server_port": 6379}))
    if config := os.environ.get("RAY_NODE_AUTOSCALING"):
        params.update(autoscaling_config=config, no_monitor=False)
    ask, end = services.get_node, time.monotonic() + START_S

    def get_node(*words: Any) -> Any:
        while True:
            try:
                return ask(*words)
            except RuntimeError:
                if time.monotonic() > end:
                    raise

    start = Node.start_raylet

    def start_raylet(self: Node, *words: Any) -> None:
        for name in PORTS:  # it waits 15 s for whoever is to choose them
            persist_port(self.get_session_dir_path(), self._node_id, name, -1)
        start(self, *words)

    Node.start_raylet, services.get_node = start_raylet, get_node
    os.environ["RAY_agent_register_timeout_ms"] = str(int(1000 * START_S))  # noqa: SIM112 - it is called so
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as above; a busy machine would let none of them run
    utils.get_dashboard_dependency_error = lambda: "left out"
    Node.start_api_server = lambda *_args, **_more: None
    Node(params, head=not gcs, shutdown_at_exit=False, spawn_reaper=False)


if __name__ == "__main__":
    main()
