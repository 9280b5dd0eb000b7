"""Requests hosts on demand of a Ray cluster: a placement group for each, through a bridge that owns the groups.

Where the cluster has no room for a group, its autoscaler starts a node. Ray takes the groups back when the bridge ends,
so with the agent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import IO

import msgspec

from jupyter_elastic.hostfiles.hosts_on_demand import HostSource
from jupyter_elastic.hosts import host_url
from jupyter_elastic.hosts.allocation_rules import KnownAllocation
from jupyter_elastic.protocol.ray_messages import (
    MAX_BYTES,
    CreateGroup,
    RayGroup,
    RayGroups,
    RayNode,
    ReadGroups,
    RemoveGroup,
    ToBridge,
)
from jupyter_elastic.types.errors import BadRequest, EngineError

LAST_BYTES = 4000
"""Length of the tail of a bridge's stderr that is searched for the reason of its end."""
BEGIN_S, ASK_S = 90.0, 30.0
"""Seconds that the cluster may take to accept the bridge, and to answer."""

log = logging.getLogger(__name__)


class RayCluster:
    """The placement groups of one cluster, by their numbers. Methods raise BadRequest if the cluster does not answer.

    Only one thread at a time may use it.
    """

    def __init__(self, source_url: str) -> None:
        self.url = source_url
        self._address = host_url.ray_node(source_url)[0]
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

    def called(self, source: HostSource, number: str, node: str) -> str:
        """Return the name of the host that a group brought."""
        return f"{source.name}-{node}-{number[:8]}"

    def slots(self, source: HostSource, node: str, gpus: int, cores: int) -> int:  # noqa: ARG002 - as `Provider` has it
        """Return the host's slots. EngineError if the group has only some of the node's GPUs."""
        asked = source.bundle.get("GPU", 0)
        if gpus and gpus != asked:
            raise EngineError(
                f"{node} has {gpus} GPUs, and of Ray {asked:g} were asked for: which ones nobody knows; ask for all, "
                f"--bundle '{{\"GPU\": {gpus}}}'"
            )
        return source.slots

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
                argv = [*host_url.ray_bridge(self._address), "--groups"]
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
