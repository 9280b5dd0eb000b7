"""Turns a host's URL into the command whose stdin and stdout are a host agent's, and the address for data. Pure."""

from __future__ import annotations

import ipaddress
import re
import shlex
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.protocol.host_agent_messages import HostHello
from jupyter_elastic.types.errors import BadRequest, EngineError

_WITHOUT_URL = "unknown:"
"""Marks a host without a URL; the reason follows the colon."""
_MODULE = ("-P", "-m", "jupyter_elastic.host_agent")
_RAY = re.compile(r"ray://([A-Za-z0-9][A-Za-z0-9._-]*:[0-9]{1,5})(?:/([A-Za-z0-9][A-Za-z0-9._-]*))?")
_BRIDGE = ("-P", "-m", "jupyter_elastic.ray_bridge")
_SSH = (
    "ssh", "-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
    "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5",
    "-o", "ControlMaster=auto", "-o", "ControlPersist=600",
)  # fmt: skip
_SRUN = (
    "srun", "--quiet", "--unbuffered", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--mpi=none",
    "--cpu-bind=none", "--chdir=/",
)  # fmt: skip
"""Options of a step beside all others of the allocation, with its whole memory; buffered, output would come late."""
_STEP = ("SLURM_", "SRUN_")
_POD = re.compile(
    r"kubectl://([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)/([a-z0-9][a-z0-9.-]{0,251}[a-z0-9])(?:/([a-z0-9][a-z0-9-]{0,62}))?"
)
"""A pod's URL, by Kubernetes' own rules for names, none of which begins with a dash."""
_SLURM = re.compile(r"slurm://([0-9]{1,15})/([A-Za-z0-9][A-Za-z0-9._-]{0,199})")


def check(host: HostAddress, *, clusters: bool = False) -> None:
    """Raise BadRequest, with advice, if the host can never be reached by its URL.

    `clusters` accepts a URL of all nodes of a Ray cluster.
    """
    if host.url.startswith("slurm:"):
        _node(host)
    elif host.url.startswith("ray:"):
        cluster, node = ray_node(host.url)
        if not cluster or not (node or clusters):
            raise BadRequest(
                f"host {host.name} can't be reached by {host.url!r}: expected ray://HOST:PORT/NODE, with the address "
                "of the cluster's GCS, and the node's address or id"
            )
    elif host.url.startswith("kubectl:"):
        _pod(host)
    elif host.url != "exec:":
        _destination(host)
    if host.network:
        _network(host)


def without_url(name: str, why: str) -> HostAddress:
    """Return a host on which the daemon has leased a slot, but whose URL is unknown."""
    return HostAddress(name=name, url=f"{_WITHOUT_URL}{why}")


def command(host: HostAddress, python: str, control: Path) -> list[str]:
    """Return the command that connects to a host agent on the host; its interpreter is that of the workers.

    `control` is a private folder, with a short path, for the connections that ssh keeps.
    """
    if host.url.startswith(_WITHOUT_URL):
        raise EngineError(f"no way to host {host.name} is known: {host.url.removeprefix(_WITHOUT_URL)}")
    argv = [host.python or python or sys.executable, *_MODULE]
    if host.url == "exec:":
        return argv
    if host.url.startswith("slurm:"):
        allocation, node = _node(host)
        return [*_SRUN, f"--jobid={allocation}", f"--nodelist={node}", *argv]
    if host.url.startswith("ray:"):
        cluster, node = ray_node(host.url)
        held = ["--gpus", str(len(host.devices))] if host.devices else ["--cpus", str(host.slots)]
        stays = ["--host", host.name, "--pool", control.name, *held]
        if host.source:
            stays = []  # the provider of the host holds its slots by a placement group, and learns when the node goes
        return [*ray_bridge(cluster), "--node", node, *stays, "--run", *argv]
    if host.url.startswith("kubectl:"):
        namespace, pod, container = _pod(host)
        inside = [f"--container={container}"] if container else []
        return ["kubectl", "exec", "--stdin", f"--namespace={namespace}", pod, *inside, "--", *argv]
    destination, port = _destination(host)
    return [
        *_SSH,
        "-o",
        f"ControlPath={_kept(host, control)}",
        *(["-p", str(port)] if port else []),
        "--",
        destination,
        shlex.join(argv),
    ]


def forget_connection(host: HostAddress, control: Path) -> None:
    """Let the next host agent use a new connection: the one that ssh keeps is silent, and may be for ever."""
    if host.url.startswith("ssh:"):
        _kept(host, control).unlink(missing_ok=True)


def _kept(host: HostAddress, control: Path) -> Path:
    """Return the socket of the connection that ssh keeps to the host."""
    return control / f"ssh-{zlib.crc32(host.url.encode()):08x}"


def environment(host: HostAddress, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the command's environment, made of ours; Slurm's variables of our own step would be options of srun."""
    if not host.url.startswith("slurm:"):
        return dict(ours)
    return {name: value for name, value in ours.items() if name == "SLURM_CONF" or not name.startswith(_STEP)}


def advice(host: HostAddress, said: str) -> str:
    """Return advice for `said`, the output of a command that started no host agent; empty if it says enough."""
    if not host.url.startswith("slurm:"):
        return ""
    allocation, node = _node(host)
    if "has expired" in said or "Invalid job id" in said:
        return f" (the allocation {allocation} has ended: jupyter elastic host remove slurm:{allocation})"
    if "node configuration is not available" in said or "nodelist" in said:
        return f" ({node} is no node of the allocation {allocation}: jupyter elastic host add slurm:{allocation})"
    return ""


def ray_node(url: str) -> tuple[str, str]:
    """Return the address of a Ray cluster and its node from a `ray://` URL; missing parts are empty."""
    found = _RAY.fullmatch(url)
    return (found[1], found[2] or "") if found else ("", "")


def ray_bridge(cluster: str) -> list[str]:
    """Return the command that connects to a Ray cluster; without further arguments it lists the nodes."""
    return [sys.executable, *_BRIDGE, cluster]


def answers_within(host: HostAddress) -> float:
    """Return the seconds that a host agent may take to answer when nothing is wrong."""
    return 180.0 if host.url.startswith("ray:") else 30.0  # Ray starts a process, which imports Ray, on each side


def data_address(host: HostAddress, hello: HostHello) -> str:
    """Return the host's address for the group's data. EngineError if it has none in the network that was asked for."""
    if host.network:
        network = _network(host)
        for address in hello.addresses:
            if ipaddress.ip_address(address) in network:
                return address
        have = ", ".join(hello.addresses) or "none"
        raise EngineError(f"host {host.name} has no address in the network {host.network}; its addresses are {have}")
    if host.url == "exec:":
        return "127.0.0.1"
    if hello.came_by in hello.addresses:
        return hello.came_by
    if host.url.startswith("kubectl:"):
        outside = [address for address in hello.addresses if not ipaddress.ip_address(address).is_loopback]
        if len(outside) == 1:  # a pod has one address, which all other pods reach
            return outside[0]
    raise EngineError(
        f"nobody knows by which address other hosts reach {host.name}, which has {', '.join(hello.addresses)}: name "
        "its network in the pool's file of hosts"
    )


def _network(host: HostAddress) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(host.network)
    except ValueError as problem:
        raise BadRequest(f"host {host.name}: the network {host.network!r} is none of IPv4: {problem}") from problem


def _node(host: HostAddress) -> tuple[str, str]:
    """Return the allocation and the node of a `slurm://` URL."""
    found = _SLURM.fullmatch(host.url)
    if found is None:
        raise BadRequest(f"host {host.name} can't be reached by {host.url!r}: expected slurm://ALLOCATION/NODE")
    return found[1], found[2]


def _pod(host: HostAddress) -> tuple[str, str, str]:
    """Return namespace, pod and container (empty: the pod's first) of a `kubectl://` URL."""
    found = _POD.fullmatch(host.url)
    if found is None:
        raise BadRequest(
            f"host {host.name} can't be reached by {host.url!r}: expected kubectl://NAMESPACE/POD[/CONTAINER]"
        )
    return found[1], found[2], found[3] or ""


def _destination(host: HostAddress) -> tuple[str, int | None]:
    """Return `[user@]host` and the port of an `ssh://` URL; refuse what could pass for an option or command."""
    problem = ""
    try:
        parts = urlsplit(host.url)
        port = parts.port
    except ValueError as error:
        problem, parts, port = str(error), urlsplit(""), None
    place = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc
    plain = place and all(word and word[0].isalnum() and word.isascii() for word in place.split("@"))
    fits = plain and all(letter.isalnum() or letter in "._-@" for letter in place) and place.count("@") <= 1
    if problem or parts.scheme != "ssh" or not fits or parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise BadRequest(
            f"host {host.name} can't be reached by {host.url!r}: expected ssh://[user@]host[:port] {problem}".rstrip()
        )
    return place, port
