"""Placement groups of Ray's that hold hosts on demand: asked for on stdin, a JSON object a line, answered on stdout.

A group that has no room yet is what Ray's autoscaler starts a node for; one that has keeps the node's CPUs or GPUs from
others, and the node from being idle. All belong to this process, so that Ray has them back when it ends, however it
ends. A group that has lost its node is given up: Ray would move it to another one, which is another host.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from jupyter_elastic.protocol.ray import CreateGroup, RayGroup, RayGroups, RayNode, RemoveGroup, ToBridge


class Groups:
    """Those of this process. `ray` is the module, connected."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._groups: dict[str, Any] = {}
        self._nodes: dict[str, str] = {}
        """The node of each group that has, or had, one."""

    def answer(self, asked: ToBridge) -> RayGroups:
        """Do what is asked."""
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
        ends = draining(self._ray)
        found = []
        for number, group in list(self._groups.items()):
            table = self._ray.util.placement_group_table(group)
            node = table["bundles_to_node_id"].get(0, "") if table["state"] == "CREATED" else ""
            if self._nodes.get(number, node) != node or table["state"] == "REMOVED" or (node and node not in addresses):
                self._remove(number)
            elif node:
                self._nodes[number] = node
                found.append(RayGroup(number=number, node=node, address=addresses[node], until=ends.get(node)))
            else:
                found.append(RayGroup(number=number))
        return tuple(found)


def draining(ray: Any) -> dict[str, float]:
    """The nodes that are being drained, by id, and when they go, in seconds since the epoch, where Ray knows that."""
    return {node: at_ms / 1000 for node, at_ms in ray._private.state.state.get_draining_nodes().items() if at_ms}


def serve(ray: Any, nodes: list[RayNode], out: int) -> None:
    """Answer until stdin ends. The first line is that of the nodes: the cluster can be used."""
    os.write(out, msgspec.json.encode(nodes) + b"\n")
    groups = Groups(ray)
    for line in sys.stdin.buffer:
        try:
            answer = groups.answer(msgspec.json.decode(line, type=ToBridge))
        except Exception as problem:
            answer = RayGroups(problem=" ".join(str(problem).split())[:1000] or type(problem).__name__)
        os.write(out, msgspec.json.encode(answer) + b"\n")
