"""Reserves addresses for servers of a cell that forms its group itself: torch's store of rank 0, TensorFlow's servers.

The ports are held on the workers' own hosts, so that nobody else is given them before a worker listens.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from jupyter_elastic.hosts.attempt_hosts import AttemptHosts, host_of
from jupyter_elastic.protocol.worker_messages import LOOPBACK
from jupyter_elastic.types import SlotId
from jupyter_elastic.types.errors import EngineError
from jupyter_elastic.worker import torchrun_environment


class ServerAddresses(Struct):
    """The server addresses of the workers that are started together."""

    hosts: dict[str, str]
    """Address of each host; the loopback's while all workers are on one host."""
    servers: tuple[tuple[str, int], ...]
    """Address and port by rank, of rank 0 at least."""
    held: list[socket.socket]
    """Sockets that hold the ports of this host."""

    def close(self) -> None:
        """Release this host's ports."""
        while self.held:
            self.held.pop().close()


async def reserve(hosts: AttemptHosts, slots: Sequence[SlotId], *, each: bool) -> ServerAddresses:
    """Reserve a port for rank 0's server, or (`each`) for every rank's; `slots` are in the order of the ranks.

    Without slots the port is on this host. A host that fails is left out with its workers, so that its address does not
    matter any more.
    """
    if not slots:
        held = torchrun_environment.reserve()
        return ServerAddresses({}, ((LOOPBACK, held.getsockname()[1]),), [held])
    names = [host_of(slot) for slot in slots]
    found = ServerAddresses({}, (), [])
    together = len(set(names)) == 1
    await hosts.open_all(slots)
    ports: dict[str, list[int]] = {}
    for name, count in Counter(names if each else names[:1]).items():
        ports[name] = await _ports(hosts, slots[names.index(name)], count, found.held)
    for name, slot in dict(zip(names, slots, strict=True)).items():
        worker_host = hosts.remote(slot)
        there = hosts.local_address() if worker_host is None else worker_host.address
        found.hosts[name] = LOOPBACK if together else there or LOOPBACK
    ranks = names if each else names[:1]
    found.servers = tuple((found.hosts[name], ports[name].pop(0)) for name in ranks)
    return found


async def _ports(hosts: AttemptHosts, slot: SlotId, count: int, held: list[socket.socket]) -> list[int]:
    worker_host = hosts.remote(slot)
    if worker_host is None:
        ours = [torchrun_environment.reserve() for _ in range(count)]
        held += ours
        return [one.getsockname()[1] for one in ours]
    try:
        return list(await worker_host.reserve(count))
    except EngineError as problem:
        hosts.unusable(host_of(slot), str(problem))
        return [0] * count
