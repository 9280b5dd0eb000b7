"""Computes a worker's environment variables: torchrun's, and those that select its devices.

Decisions only, except `reserve`. Knows no process, channel or framework.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping, Sequence

from jupyter_elastic.protocol.worker_messages import LOOPBACK, ONE_HOST, HostRank


def torchrun(
    *,
    rank: int,
    size: int,
    local_rank: int,
    place: HostRank = ONE_HOST,
    master: str = LOOPBACK,
    port: int = 0,
    job: int = 0,
    restarts: int = 0,
) -> dict[str, str]:
    """Return the variables that torchrun sets for a worker; without those of the rendezvous when there is no `port`.

    torchrun's groups are the hosts: one torchrun agent is on each.

    `TORCHELASTIC_USE_AGENT_STORE` says that rank 0 is to open the store: our driver has none.
    """
    found = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(place.workers or size),
        "GROUP_RANK": str(place.number),
        "GROUP_WORLD_SIZE": str(place.hosts),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(size),
    }
    if port:
        found |= {
            "MASTER_ADDR": master,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": f"jupyter-elastic-{job}",
            "TORCHELASTIC_RESTART_COUNT": str(restarts),
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
    return found


def tf_config(rank: int, servers: Sequence[tuple[str, int]]) -> str:
    """Return `TF_CONFIG` of one of the workers, for TensorFlow's `MultiWorkerMirroredStrategy`.

    `servers`: address and port at which each rank listens.
    """
    cluster = {"worker": [f"{address}:{port}" for address, port in servers]}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})


def no_proxy(environment: Mapping[str, str], addresses: Iterable[str]) -> dict[str, str]:
    """Return the variables by which no library asks a proxy for this host or one of these addresses.

    The user's own exceptions stay in front. gRPC heeds a list of its own before the common one, and no `*`.
    """
    own = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *addresses]
    given = [environment.get("no_proxy", ""), environment.get("NO_PROXY", "")]
    common = "*" if "*" in given else ",".join(filter(None, dict.fromkeys([*",".join(given).split(","), *own])))
    found = {"no_proxy": common, "NO_PROXY": common}
    if "no_grpc_proxy" in environment or common == "*":
        of_grpc = environment.get("no_grpc_proxy", "").split(",")
        found["no_grpc_proxy"] = ",".join(filter(None, dict.fromkeys([*of_grpc, *own])))
    return found


def smallest_free(taken: set[int]) -> int:
    """Return a new worker's local rank: living workers have all ranks below it, so no device is missing there."""
    return next(number for number in range(len(taken) + 1) if number not in taken)


def visible(local_rank: int, devices: Mapping[int, str], *, pins: bool) -> tuple[str, str]:
    """Return `CUDA_VISIBLE_DEVICES` of a worker, and its device's name in torch; `devices` are by local rank.

    A worker sees its own device only, so that `.cuda()` means it and TensorFlow, which takes hold of every GPU that it
    sees, takes no other's. A cell that picks its device by local rank (`pins`) sees the job's devices in the order of
    local ranks, as under torchrun. A process can use only one part of a divided GPU (MIG), and CUDA takes no GPU that
    is listed twice (several slots can be one GPU's), so there it is always its own.
    """
    own = devices.get(local_rank, "")
    if not own:
        return "", "cpu"
    once = len(set(devices.values())) == len(devices)
    if not (pins and once) or any(device.startswith("MIG-") for device in devices.values()):
        return own, "cuda:0"
    return ",".join(devices[number] for number in sorted(devices) if devices[number]), f"cuda:{local_rank}"


def reserve() -> socket.socket:
    """Reserve a TCP port that nobody else is given while the socket lives, and at which rank 0 can listen all the same.

    Linux lets several sockets with SO_REUSEADDR have a port as long as not more than one of them listens; it gives it
    to nobody who asks for any port, and to no connection. Servers set that option (torch's, Gloo's, gRPC's).
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))  # all interfaces, as torch's store does; nothing listens here
    except BaseException:
        held.close()
        raise
    return held
