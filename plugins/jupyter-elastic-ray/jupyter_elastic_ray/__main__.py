"""Starts a host agent on a node of a Ray cluster, lists the nodes, or serves groups (`python -m jupyter_elastic_ray`).

Only this process imports Ray: the import takes a second, its version is the cluster's, and what it opens and starts is
gone with it. An actor on the node starts the host agent; the actor belongs to this process and ends with it, and the
host agent's stdin with the actor. A second actor, one for all of a pool's host agents on that node, holds the CPUs or
GPUs of the pool's slots there, so that Ray gives them to nobody else; Ray restarts it for the remaining bridges when
the bridge that began it has gone. When Ray drains the node the pool learns when it goes, and the host agent ends then.

The actors' classes are pickled by value because they stand in `__main__`: the nodes need no package of ours for them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from jupyter_elastic.hostfiles import hosts_file
from jupyter_elastic.platform import paths
from jupyter_elastic_ray import placement_groups
from jupyter_elastic_ray.bridge_messages import RayNode

NAMESPACE = "jupyter-elastic"
CONNECT_S = 5.0
"""Seconds that the cluster's address may take to answer."""
HELD_S = 120.0
"""Seconds that Ray may take to host_agent over the pool's CPUs or GPUs: it starts an interpreter to hold them."""
PIECE = 256 * 1024
POLL_S = 5.0
"""Seconds between two checks if Ray drains the node."""
WINDOW = 8
"""Maximum number of pieces under way in each direction: Ray itself would keep as many as it is given."""


class NotReached(Exception):
    """Says why the cluster or its node can't be used."""


class HostAgentActor:
    """Starts a host agent on its node, and carries its streams. A thread for each direction keeps their order."""

    def start(self, argv: Sequence[str], address: str) -> str:
        """Start the host agent; return why it can't be started, empty if it was."""
        environment = {
            name: value
            for name, value in os.environ.items()
            # Ray sets these for the work that it schedules, which the host agent's workers are not
            if not name.startswith("RAY_") and name not in {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"}
        }
        with contextlib.suppress(OSError):  # only root may: Ray's processes give way to all others, at nice 15
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        pipe = subprocess.PIPE
        try:
            self.child = subprocess.Popen(
                argv,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env={**environment, "JUPYTER_ELASTIC_ADDRESS": address},
                start_new_session=True,
                bufsize=0,
            )
        except OSError as problem:
            return f"{argv[0]}: {problem.strerror}"
        return ""

    def write(self, data: bytes) -> bool:
        """Write to the host agent's stdin; return False once it is closed."""
        try:
            while data:
                data = data[os.write(self.child.stdin.fileno(), data) :]  # type: ignore[union-attr] # it is a pipe
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the host agent's stdin, which ends it."""
        self.child.stdin.close()  # type: ignore[union-attr]

    def read(self, stream: str) -> Iterator[bytes]:
        """Yield the host agent's output until its end."""
        while data := os.read(getattr(self.child, stream).fileno(), 256 * 1024):
            yield data

    def ended(self) -> int:
        """Return the host agent's exit code."""
        return self.child.wait()


class HoldActor:
    """Holds CPUs or GPUs of a node for a pool."""

    async def ready(self) -> None:
        """Return at once: Ray has handed them over."""

    async def hold(self) -> None:
        """Never return: a caller learns from the error when this actor is gone."""
        await asyncio.Event().wait()


def main() -> int:
    """Run the requested command; return the exit code, the host agent's own if there was one."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_elastic_ray", description=__doc__)
    parser.add_argument("address", help="of the cluster's GCS: HOST:PORT")
    parser.add_argument("--node", default="", help="address or id; left out: list the nodes")
    parser.add_argument("--host", default="", help="the node's name in the pool, which learns when Ray drains it")
    parser.add_argument("--pool", default="", help="whose CPUs or GPUs are held there, by all of its bridges together")
    parser.add_argument("--cpus", type=int, default=0)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--groups", action="store_true", help="ask for placement groups as stdin says")
    parser.add_argument("--run", nargs=argparse.REMAINDER, default=[], metavar="ARGV", help="last: the command there")
    given = parser.parse_args()
    out = os.dup(1)
    os.dup2(2, 1)  # Ray's output must not get between the bytes
    try:
        ray = _connected(given.address)
        if given.groups:
            placement_groups.serve(ray, _nodes(ray), out)
            return 0
        if not given.node:
            os.write(out, msgspec.json.encode(_nodes(ray)) + b"\n")
            return 0
        return _carry(ray, given, out)
    except NotReached as problem:
        sys.stderr.write(f"{problem}\n")
        return 1


def _connected(address: str) -> Any:
    """Return Ray's module, connected with the cluster."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as problem:
        raise NotReached(
            f"no Ray cluster answers at {address}: {problem.strerror or problem}; the address is the one that "
            "`ray start --head` names, usually with port 6379"
        ) from problem
    try:
        import ray
    except ImportError as problem:
        raise NotReached(
            f"Ray is not installed for {sys.executable} ({problem}): pip install 'ray==VERSION' with the cluster's "
            "version, or jupyter-elastic[ray]"
        ) from problem
    try:
        ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", configure_logging=False
        )
    except Exception as problem:  # Ray raises classes of its own for everything
        text = " ".join(str(problem).split())[:600] or type(problem).__name__
        raise NotReached(
            f"the Ray cluster at {address} can't be used from here: {text} (this machine must be one of its nodes, "
            f"with the same versions of Ray and Python: ray start --address={address} --num-cpus=0)"
        ) from problem
    return ray


def _nodes(ray: Any) -> list[RayNode]:
    here = ray.get_runtime_context().get_node_id()
    return [
        RayNode(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            here=node["NodeID"] == here,
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def _carry(ray: Any, given: argparse.Namespace, out: int) -> int:
    nodes = _nodes(ray)
    found = [node for node in nodes if given.node in {node.id, node.address}]
    if len(found) != 1:
        what = f"has {len(found)} living nodes" if found else "has no living node"
        there = ", ".join(f"{node.address} ({node.id})" for node in nodes)
        raise NotReached(f"the Ray cluster at {given.address} {what} {given.node}; its nodes are {there}")
    (node,) = found
    if given.host and _end_of(ray, node, given.host) is not None:
        raise NotReached(f"Ray drains the node {node.address}: nothing new may begin there")
    there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
    make = ray.remote(num_cpus=0, max_restarts=0, concurrency_groups={"in": 1, "out": 1, "err": 1})
    host_agent = (
        make(HostAgentActor).options(scheduling_strategy=there).remote()
    )  # starts at the same time as the holder
    if given.cpus or given.gpus:
        _hold(ray, there, node, given)
    try:
        if problem := ray.get(host_agent.start.options(concurrency_group="in").remote(given.run, node.address)):
            raise NotReached(problem)
        threading.Thread(target=_feed, args=(ray, host_agent), daemon=True).start()
        if given.host:
            threading.Thread(target=_watch_drain, args=(ray, node, given.host, host_agent), daemon=True).start()
        saying = threading.Thread(target=_copy, args=(ray, host_agent, "stderr", "err", 2), daemon=True)
        saying.start()
        _copy(ray, host_agent, "stdout", "out", out)
        os.close(out)
        code: int = ray.get(host_agent.ended.options(concurrency_group="out").remote())
        saying.join(CONNECT_S)
    except ray.exceptions.RayError as problem:
        raise NotReached(f"Ray has lost the node {given.node}: {' '.join(str(problem).split())[:300]}") from problem
    return code if code >= 0 else 128 - code


def _hold(ray: Any, there: Any, node: RayNode, given: argparse.Namespace) -> None:
    """Have the first of the pool's bridges hold the pool's CPUs or GPUs of the node."""
    # Another number of slots is another holder; the machine's name keeps the pools of two containers apart.
    name = f"{socket.gethostname()} {given.pool} {node.id} {given.cpus} {given.gpus}"
    make = ray.remote(num_cpus=given.cpus, num_gpus=given.gpus, max_restarts=0)(HoldActor)

    def holder() -> Any:
        return make.options(name=name, get_if_exists=True, scheduling_strategy=there).remote()

    for last in (False, True):
        first = holder()
        try:
            ray.get(first.ready.remote(), timeout=HELD_S)
            break
        except ray.exceptions.RayError as problem:  # too late, or at once if the node never has so much
            if last or isinstance(problem, ray.exceptions.GetTimeoutError):
                what = f"{given.gpus} GPUs" if given.gpus else f"{given.cpus} CPUs"
                raise NotReached(
                    f"Ray does not give {what} of the node {node.address} away: other work has some of them (`ray "
                    "status` shows it), or it has fewer; take fewer with --slots"
                ) from problem
            # else the holder belonged to a bridge that was just leaving

    def keep(held: Any) -> None:
        while True:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(held.hold.remote())
            time.sleep(1.0)  # Ray may refuse at once
            held = holder()

    threading.Thread(target=keep, args=(first,), daemon=True).start()


def _end_of(ray: Any, node: RayNode, host: str) -> float | None:
    """Return the end of a node that Ray drains, in seconds since the epoch, and store it; None: it stays."""
    deadline = placement_groups.read_draining(ray).get(node.id)
    if deadline is None:
        return None
    state = paths.state_dir()
    known = next((one.until for one in hosts_file.read(state) if one.name == host), None)
    until = placement_groups.ends({node.id: deadline}, {node.id: time.time()})[node.id]
    if known is not None and known <= until:  # without a deadline the time counts from the first sight of the drain
        return known
    hosts_file.put_end(state, host, until)
    return until


def _watch_drain(ray: Any, node: RayNode, host: str, host_agent: Any) -> None:
    """End the host agent when the node's time is over: Ray waits for that, if the drain has no deadline."""
    while True:
        time.sleep(POLL_S)
        try:
            until = _end_of(ray, node, host)
        except Exception as problem:  # Ray's error, or the pool's file can't be read: the next time may work
            sys.stderr.write(f"whether Ray drains the node {node.address} is not known: {problem}\n")
            continue
        if until is not None and time.time() >= until:
            sys.stderr.write(f"Ray drains the node {node.address}\n")
            host_agent.close.options(concurrency_group="in").remote()
            return


def _feed(ray: Any, host_agent: Any) -> None:
    """Carry this process's stdin to the host agent, until stdin ends or the host agent takes no more."""
    write = host_agent.write.options(concurrency_group="in")
    under_way: deque[Any] = deque()
    with contextlib.suppress(ray.exceptions.RayError):  # `_copy` gets the same error
        while data := os.read(0, PIECE):
            under_way.append(write.remote(data))
            if len(under_way) > WINDOW and not ray.get(under_way.popleft()):
                return
        ray.get(host_agent.close.options(concurrency_group="in").remote())


def _copy(ray: Any, host_agent: Any, stream: str, group: str, target: int) -> None:
    """Carry one of the host agent's streams here, until it ends."""
    options: Mapping[str, Any] = {"num_returns": "streaming", "_generator_backpressure_num_objects": WINDOW}
    for piece in host_agent.read.options(concurrency_group=group, **options).remote(stream):
        data = ray.get(piece)
        while data:
            data = data[os.write(target, data) :]


if __name__ == "__main__":
    sys.exit(main())
