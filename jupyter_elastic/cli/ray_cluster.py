"""Makes nodes of a Ray cluster hosts of a personal pool: `jupyter elastic host add NAME ray://HOST:PORT`."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable

import msgspec

from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts import host_url
from jupyter_elastic.protocol.ray_messages import RayNode
from jupyter_elastic.types.errors import BadRequest, EngineError

ASK_S = 90.0
"""Maximum seconds that the cluster may take to list its nodes."""


def nodes(cluster: str) -> list[RayNode]:
    """Return the live nodes of the cluster with this address. EngineError without an answer."""
    try:
        done = subprocess.run(
            host_url.ray_bridge(cluster), stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"the Ray cluster at {cluster} does not answer within {ASK_S:g} s") from None
    try:
        if done.returncode == 0:
            return msgspec.json.decode(done.stdout, type=list[RayNode])
    except msgspec.DecodeError as problem:
        raise EngineError(f"what the Ray cluster at {cluster} has can't be read: {problem}") from problem
    words = done.stderr.decode(errors="replace").strip().splitlines()
    raise EngineError(words[-1] if words else f"the Ray cluster at {cluster} does not say what nodes it has")


def hosts(told: HostAddress, most: int | None, found: Iterable[RayNode]) -> tuple[HostAddress, ...]:
    """Return the nodes as hosts, each with its name and URL; GPUs without their UUIDs, which Ray does not know.

    Args:
        told: The user's description; its URL is that of the cluster, to which each node is added, or of one node.
        most: Maximum number of slots of a node; None: all that Ray allocates there.
        found: The cluster's nodes. This machine is left out, and each node without resources.

    Raises:
        BadRequest: There is no such node.
    """
    cluster, one = host_url.ray_node(told.url)
    offered = [node for node in found if not node.here and _offer(node) and one in {"", node.address, node.id}]
    many = Counter(node.address for node in offered)
    if not offered:
        raise BadRequest(
            f"the Ray cluster at {cluster} has no {one or 'other'} node with CPUs or GPUs to give away; this machine's "
            "slots are the pool's already"
        )
    made = []
    for node in offered:
        called = node.address if many[node.address] == 1 else node.id
        slots = min(_offer(node), most or _offer(node))
        made.append(
            msgspec.structs.replace(
                told,
                name=told.name if one else f"{told.name}-{called[:40]}",
                url=f"ray://{cluster}/{one or called}",
                slots=slots,
                devices=("unknown",) * slots if node.gpus >= 1 else (),
            )
        )
    return tuple(made)


def of_cluster(name: str, all_hosts: Iterable[HostAddress]) -> set[str]:
    """Return the names of those hosts that are nodes of the cluster with this name."""
    return {host.name for host in all_hosts if host.name.startswith(f"{name}-") and all(host_url.ray_node(host.url))}


def _offer(node: RayNode) -> int:
    """Return the node's GPUs if it has any, else its CPUs."""
    return int(node.gpus) or int(node.cpus)
