"""Serves Ray placement groups that hold hosts on demand: requests on stdin, a JSON object a line, answers on stdout.

Ray's autoscaler starts a node for a group that has no room yet; a group that has room keeps the node's CPUs or GPUs
from others, and the node from being idle. All groups belong to this process, so Ray has them back when it ends, however
it ends. A group that has lost its node is given up: Ray would move it to another node, which is another host.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_elastic_ray.bridge_messages import CreateGroup, RayGroup, RayGroups, RayNode, RemoveGroup, ToBridge

LEAVE_S = 60.0
"""Seconds in which a node drained without a deadline is left: Ray ends it as soon as nothing runs there."""


class PlacementGroups:
    """The placement groups of this process. `ray` is the module, connected."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._groups: dict[str, Any] = {}
        self._nodes: dict[str, str] = {}
        """The node of each group that has, or had, one."""
        self._draining_since: dict[str, float] = {}

    def answer(self, asked: ToBridge) -> RayGroups:
        """Carry out a request."""
        created = ""
        match asked:
            case CreateGroup(bundle):
                group = self._ray.util.placement_group([bundle], strategy="STRICT_PACK")
                created = group.id.hex()[:16]
                self._groups[created] = group
            case RemoveGroup(number):
                self._remove(number)
        return RayGroups(groups=self._read(), created=created)

    def _remove(self, number: str) -> None:
        self._nodes.pop(number, None)
        if group := self._groups.pop(number, None):
            self._ray.util.remove_placement_group(group)

    def _read(self) -> tuple[RayGroup, ...]:
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in self._ray.nodes() if node["Alive"]}
        draining, now = read_draining(self._ray), time.time()
        self._draining_since = {node: self._draining_since.get(node, now) for node in draining}
        leaving = ends(draining, self._draining_since)
        found = []
        for number, group in list(self._groups.items()):
            table = self._ray.util.placement_group_table(group)
            node = table["bundles_to_node_id"].get(0, "") if table["state"] == "CREATED" else ""
            if self._nodes.get(number, node) != node or table["state"] == "REMOVED" or (node and node not in addresses):
                self._remove(number)
            elif node:
                self._nodes[number] = node
                found.append(RayGroup(number=number, node=node, address=addresses[node], until=leaving.get(node)))
            else:
                found.append(RayGroup(number=number))
        return tuple(found)


def read_draining(ray: Any) -> dict[str, int]:
    """Return the nodes that are being drained, by id, and their deadlines in ms since the epoch; 0: no deadline."""
    return dict(ray._private.state.state.get_draining_nodes())


def ends(draining: Mapping[str, int], since: Mapping[str, float]) -> dict[str, float]:
    """Return when to leave the drained nodes, by id, in seconds since the epoch.

    Args:
        draining: As `read_draining` has it.
        since: When each was first seen to be drained, in seconds since the epoch.
    """
    return {node: at_ms / 1000 if at_ms else since[node] + LEAVE_S for node, at_ms in draining.items()}


def serve(ray: Any, nodes: list[RayNode], out: int) -> None:
    """Answer until stdin ends. The first line lists the nodes: the cluster can be used."""
    os.write(out, msgspec.json.encode(nodes) + b"\n")
    groups = PlacementGroups(ray)
    for line in sys.stdin.buffer:
        try:
            answer = groups.answer(msgspec.json.decode(line, type=ToBridge))
        except Exception as problem:
            answer = RayGroups(problem=" ".join(str(problem).split())[:1000] or type(problem).__name__)
        os.write(out, msgspec.json.encode(answer) + b"\n")
