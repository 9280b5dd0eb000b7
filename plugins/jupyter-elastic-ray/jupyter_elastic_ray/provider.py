"""Makes nodes of a Ray cluster hosts, and requests hosts on demand: a placement group for each.

A bridge, a process of its own, is the only one that imports Ray; one of them owns the groups. Where the cluster has no
room for a group, its autoscaler starts a node. Ray takes the groups back when the bridge ends, so with the agent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import msgspec
from msgspec.structs import replace

from jupyter_elastic.hostfiles.host_providers import AgentCommand, Allocates, HostGroup, Offer, Target
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hostfiles.hosts_on_demand import HostSource, KnownAllocation, SourceRequest
from jupyter_elastic.protocol.host_agent_messages import HostHello
from jupyter_elastic.types.errors import BadRequest, EngineError
from jupyter_elastic_ray.bridge_messages import (
    MAX_BYTES,
    CreateGroup,
    RayGroup,
    RayGroups,
    RayNode,
    ReadGroups,
    RemoveGroup,
    ToBridge,
)

LAST_BYTES = 4000
"""Length of the tail of a bridge's stderr that is searched for the reason of its end."""
BEGIN_S, ASK_S = 90.0, 30.0
"""Seconds that the cluster may take to accept the bridge, and to answer."""

ANSWER_S = 180.0
"""Seconds that a host agent may take to answer: Ray starts a process, which imports Ray, on each side."""
_URL = re.compile(r"ray://([A-Za-z0-9][A-Za-z0-9._-]*:[0-9]{1,5})(?:/([A-Za-z0-9][A-Za-z0-9._-]*))?")
_MODULE = ("-P", "-m", "jupyter_elastic_ray")
_BUNDLE = """{}: add --max-hosts 4, and what Ray is asked for, for each: --bundle '{{"GPU": 4}}', or '{{"CPU": 8}}'"""
_WORD = "--bundle="

log = logging.getLogger(__name__)


class RayCluster:
    """The placement groups of one cluster, by their numbers. Methods raise BadRequest if the cluster does not answer.

    Only one thread at a time may use it.
    """

    def __init__(self, source_url: str) -> None:
        self.url = source_url
        self._address = node_of(source_url)[0]
        self._bridge: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        """The bridge's stderr."""

    def submit(self, source: HostSource) -> str:
        """Request a group; return its number."""
        return self._ask(CreateGroup(source.bundle)).created

    def allocations(self, numbers: Sequence[str]) -> dict[str, KnownAllocation]:
        """Return those of the groups that wait or have a node."""
        if not numbers:
            return {}
        groups = {group.number: group for group in self._ask(ReadGroups()).groups}
        return {number: _known(groups[number], self._address) for number in numbers if number in groups}

    def cancel(self, number: str) -> None:
        """Give the group back; with the last one the bridge ends."""
        if self._bridge is None:
            return  # it belonged to a bridge that has ended
        try:
            if not self._ask(RemoveGroup(number)).groups:
                self.close()
        except BadRequest as problem:
            log.warning("%s", problem)

    def close(self) -> None:
        """Give all groups back."""
        bridge, self._bridge = self._bridge, None
        if bridge is None:
            return
        with contextlib.suppress(OSError):
            bridge.stdin.close()  # type: ignore[union-attr] # it is a pipe
        try:
            bridge.wait(ASK_S)
        except subprocess.TimeoutExpired:
            bridge.kill()
            bridge.wait()
        bridge.stdout.close()  # type: ignore[union-attr] # as above
        self._said.close()  # type: ignore[union-attr] # it was opened for the bridge

    def _ask(self, asked: ToBridge) -> RayGroups:
        try:
            if self._bridge is None:
                argv = [*bridge(self._address), "--groups"]
                pipe, self._said = subprocess.PIPE, tempfile.TemporaryFile()  # noqa: SIM115 - `close` does
                self._bridge = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=self._said, bufsize=0)
                msgspec.json.decode(self._line(BEGIN_S), type=list[RayNode])
            self._bridge.stdin.write(msgspec.json.encode(asked) + b"\n")  # type: ignore[union-attr] # as above
            answer = msgspec.json.decode(self._line(ASK_S), type=RayGroups)
        except (OSError, EOFError, msgspec.DecodeError) as problem:
            why = self._last_words() if isinstance(problem, EOFError | BrokenPipeError) else str(problem)
            self.close()
            raise BadRequest(f"the Ray cluster at {self._address} can't be asked: {why}") from problem
        if answer.problem:
            raise BadRequest(f"the Ray cluster at {self._address}: {answer.problem}")
        return answer

    def _line(self, within_s: float) -> bytes:
        """Read the bridge's next line. EOFError when the bridge has ended, TimeoutError when it does not answer."""
        said, end = b"", time.monotonic() + within_s
        stdout = self._bridge.stdout  # type: ignore[union-attr] # it was started
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)  # type: ignore[arg-type] # it is a pipe
            while not said.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise TimeoutError(f"no answer within {within_s:g} s")
                data = stdout.read(65_536)  # type: ignore[union-attr] # as above
                if not data or len(said) > MAX_BYTES:
                    raise EOFError
                said += data
        return said

    def _last_words(self) -> str:
        """Return the last line of an ended bridge's stderr."""
        if self._said is None:
            return ""
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - LAST_BYTES))
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:1000] if lines else "it has ended"


def _known(group: RayGroup, cluster: str) -> KnownAllocation:
    return KnownAllocation(
        runs=bool(group.node),
        node=group.address,
        url=f"ray://{cluster}/{group.node}" if group.node else "",
        until=group.until,
    )


def node_of(url: str) -> tuple[str, str]:
    """Return the address of a Ray cluster and its node from a `ray://` URL; missing parts are empty."""
    found = _URL.fullmatch(url)
    return (found[1], found[2] or "") if found else ("", "")


def bridge(cluster: str) -> list[str]:
    """Return the command that connects to a Ray cluster; without further arguments it lists the nodes."""
    return [sys.executable, *_MODULE, cluster]


def nodes(cluster: str) -> list[RayNode]:
    """Return the live nodes of the cluster with this address. EngineError without an answer."""
    try:
        done = subprocess.run(
            bridge(cluster), stdin=subprocess.DEVNULL, capture_output=True, timeout=BEGIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"the Ray cluster at {cluster} does not answer within {BEGIN_S:g} s") from None
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
    cluster, one = node_of(told.url)
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
            replace(
                told,
                name=told.name if one else f"{told.name}-{called[:40]}",
                url=f"ray://{cluster}/{one or called}",
                slots=slots,
                devices=("unknown",) * slots if node.gpus >= 1 else (),
            )
        )
    return tuple(made)


def _offer(node: RayNode) -> int:
    """Return the node's GPUs if it has any, else its CPUs."""
    return int(node.gpus) or int(node.cpus)


class RayTarget(Target, frozen=True, kw_only=True):
    """A node of a Ray cluster."""

    cluster: str
    node: str

    def command(self, agent: Sequence[str], runtime: Path) -> AgentCommand:
        """Return the command of a bridge, which holds the pool's CPUs or GPUs of the node.

        Those of a host on demand are held by its placement group.
        """
        held = ["--gpus", str(len(self.host.devices))] if self.host.devices else ["--cpus", str(self.host.slots)]
        stays = [] if self.host.source else ["--host", self.host.name, "--pool", runtime.name, *held]
        argv = [*bridge(self.cluster), "--node", self.node, *stays, "--run", *agent]
        return AgentCommand(argv=argv, answer_s=ANSWER_S)

    def belongs_to(self, group: str) -> bool:
        """Return True for the name by which the cluster was added."""
        return self.host.name.startswith(f"{group}-")

    def accept(self, hello: HostHello, slots: int | None) -> HostAddress:
        """Return the host with the GPUs that Ray gives, which the host agent has found there."""
        del slots
        asked = len(self.host.devices)
        if len(hello.gpus) < asked:
            raise EngineError(f"host {self.host.name} has {len(hello.gpus)} GPUs, and Ray {asked} there")
        return replace(self.host, devices=hello.gpus[:asked])


class Ray(Allocates):
    """Nodes of Ray clusters."""

    form = "ray://HOST:PORT/NODE"
    waits = "placement group {} waits for a node of the Ray cluster with room for it"

    def __init__(self) -> None:
        self._clusters: dict[str, RayCluster] = {}
        """Clusters by the name of their source."""

    def parse(self, host: HostAddress) -> RayTarget:
        """Parse `ray://HOST:PORT/NODE`."""
        cluster, node = node_of(host.url)
        if not node:
            raise self._none(host)
        return RayTarget(host=host, cluster=cluster, node=node)

    def _none(self, host: HostAddress) -> BadRequest:
        return self.refused(host, ", with the address of the cluster's GCS, and the node's address or id")

    def discover(self, asked: HostAddress, slots: int | None) -> HostGroup:
        """Return the cluster's nodes, or the one that the URL names."""
        cluster, node = node_of(asked.url)
        if not cluster:
            raise self._none(asked)
        return HostGroup(hosts(asked, slots, nodes(cluster)), "" if node else asked.name)

    def offer(self, asked: SourceRequest) -> Offer:
        """Ask the cluster whether it can be used."""
        if asked.time_limit_s is not None:
            raise BadRequest("--time-limit is for `host add slurm:auto`; Ray has none: leave it out")
        if asked.slots is not None:
            raise BadRequest("--bundle says how many slots a host has: leave out --slots")
        bundles = [word.removeprefix(_WORD) for word in asked.options if word.startswith(_WORD)]
        if others := [word for word in asked.options if not word.startswith(_WORD)]:
            raise BadRequest(f"Ray takes --bundle alone: leave out {others[0]}")
        if asked.max_hosts is None or not bundles:
            raise BadRequest(_BUNDLE.format(asked.name))
        cluster, node = node_of(asked.url)
        if not cluster:
            raise self._none(HostAddress(name="node", url=asked.url))
        if node:
            raise BadRequest(f"{asked.url} is one node; name the cluster, ray://HOST:PORT, for nodes that are to come")
        try:
            bundle = msgspec.json.decode(bundles[-1], type=dict[str, float])
        except msgspec.DecodeError as problem:
            raise BadRequest(f"{_BUNDLE.format(asked.name)}: {problem}") from problem
        slots = int(bundle.get("GPU", 0)) or int(bundle.get("CPU", 0))
        source = asked.source(kind="ray", reach=asked.url, bundle=bundle, slots=slots)
        nodes(cluster)
        return Offer(
            source,
            f"{source.max_hosts} hosts at most, {source.slots} slots each; Ray has them back after {source.idle_s:g} s "
            "without work",
        )

    def submit(self, source: HostSource) -> str:
        """Request a placement group."""
        return self._cluster(source).submit(source)

    def status(self, source: HostSource, numbers: Sequence[str]) -> dict[str, KnownAllocation]:
        """Return those of the groups that wait or have a node."""
        return self._cluster(source).allocations(numbers)

    def cancel(self, source: str, number: str) -> None:
        """Give the group back, unless its bridge has ended."""
        if source in self._clusters:
            self._clusters[source].cancel(number)

    def host_name(self, source: HostSource, number: str, node: str) -> str:
        """Return the name of the host that a group brought."""
        return f"{source.name}-{node}-{number[:8]}"

    def slots(self, source: HostSource, node: str, gpus: int, cores: int) -> int:
        """Return the host's slots. EngineError if the group has only some of the node's GPUs."""
        del cores
        asked = source.bundle.get("GPU", 0)
        if gpus and gpus != asked:
            raise EngineError(
                f"{node} has {gpus} GPUs, and of Ray {asked:g} were asked for: which ones nobody knows; ask for all, "
                f"--bundle '{{\"GPU\": {gpus}}}'"
            )
        return source.slots

    def close(self) -> None:
        """Give all groups back: they belong to bridges, which end with this process."""
        for cluster in self._clusters.values():
            cluster.close()

    def _cluster(self, source: HostSource) -> RayCluster:
        cluster = self._clusters.get(source.name)
        if cluster is None or cluster.url != source.url:
            if cluster is not None:
                cluster.close()
            cluster = self._clusters[source.name] = RayCluster(source.url)
        return cluster
