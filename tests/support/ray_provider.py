"""Nodes for Ray's own autoscaler: machines made of namespaces, on which Ray is started and ended as it wants."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

from tests.support import machines, ray_node

HEAD = "head"


class Machines(NodeProvider):
    """The machines h1 to hN, N being `machines` of the configuration; the head is this one."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        head = {
            TAG_RAY_NODE_KIND: NODE_KIND_HEAD,
            TAG_RAY_USER_NODE_TYPE: HEAD,
            TAG_RAY_NODE_NAME: "0",
            TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE,
        }
        self._nodes = {"0": head}

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """Those with these tags."""
        return [node for node, tags in self._nodes.items() if tag_filters.items() <= tags.items()]

    def is_running(self, node_id: str) -> bool:
        """Whether it is there."""
        return node_id in self._nodes

    def is_terminated(self, node_id: str) -> bool:
        """Whether it is not."""
        return node_id not in self._nodes

    def node_tags(self, node_id: str) -> dict[str, str]:
        """Its tags."""
        return self._nodes[node_id]

    def internal_ip(self, node_id: str) -> str:
        """Its address."""
        return machines.address(int(node_id))

    external_ip = internal_ip

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        """Add tags."""
        self._nodes[node_id].update(tags)

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any]:
        """Start Ray on so many machines that have none."""
        free = [str(n) for n in range(1, self.provider_config["machines"] + 1) if str(n) not in self._nodes]
        for node in free[:count]:
            self._nodes[node] = {**tags, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}
            gcs = f"{machines.address(0)}:6379"
            command = [sys.executable, ray_node.__file__, machines.address(int(node)), "1", gcs]
            environment = {"JUPYTER_ELASTIC_DIR": f"/run/pool-{node}", "PYTHONPATH": str(machines.SOURCE)}
            folder = Path(f"/run/ray-{node}")
            folder.mkdir(exist_ok=True)
            line = f"mount --bind {folder} /tmp/ray; exec {shlex.join(command)}"
            machines.Machines.run(self, int(node), line, **environment)
        return {node: {} for node in free[:count]}

    def terminate_node(self, node_id: str) -> None:
        """End all that runs on it."""
        del self._nodes[node_id]
        found = subprocess.run(["ip", "netns", "pids", f"h{node_id}"], capture_output=True, text=True, check=True)
        for pid in found.stdout.split():
            if psutil.pid_exists(int(pid)):
                os.kill(int(pid), signal.SIGKILL)
