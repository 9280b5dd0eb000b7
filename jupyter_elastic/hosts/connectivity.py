"""Checks if hosts reach each other at their data addresses, which may differ from the path to their host agents."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from jupyter_elastic.platform import reachability
from jupyter_elastic.types.errors import EngineError

THIS = "this host"
ADVICE = "let connections between these addresses through, or name the network of the data in the pool's file of hosts"


class PathEnd(Protocol):
    """A host as an endpoint of the group's connections."""

    @property
    def name(self) -> str:
        """The host's name."""
        ...

    @property
    def address(self) -> str:
        """The address by which other hosts reach the host."""
        ...

    async def listen(self) -> tuple[int, bytes]:
        """Listen there for some seconds for a peer that knows a token; return port and token. EngineError."""
        ...

    async def reaches(self, address: str, port: int, token: bytes) -> str:
        """Return why the token can't be sent from here to that address; empty if it can. EngineError."""
        ...


class ThisHost:
    """The driver's own host, at the address from which it connects to `other`, an address."""

    name = THIS

    def __init__(self, other: str) -> None:
        self.address = reachability.toward(other)

    async def listen(self) -> tuple[int, bytes]:
        """Listen here for a peer."""
        token = secrets.token_bytes(32)
        try:
            return await reachability.listen(self.address, token), token
        except OSError as problem:
            raise EngineError(f"nothing can listen at this host's address {self.address}: {problem}") from problem

    async def reaches(self, address: str, port: int, token: bytes) -> str:
        """Connect from here."""
        return await reachability.dial(address, port, token)


class BrokenPath(Struct, frozen=True):
    """A broken network path from one host to another."""

    source: str
    source_address: str
    target: str
    target_address: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.target} ({self.target_address}) can't be reached from {self.source} ({self.source_address}): "
            f"{self.problem}"
        )


async def cuts(pairs: Iterable[tuple[PathEnd, PathEnd]]) -> list[BrokenPath]:
    """Return the broken paths, in both directions, within each pair. EngineError if a host can't try."""
    pairs = list(pairs)
    places = list({id(place): place for pair in pairs for place in pair}.values())
    heard = dict(zip(map(id, places), await asyncio.gather(*(place.listen() for place in places)), strict=True))
    ways = [way for one, other in pairs for way in ((one, other), (other, one))]
    problems = await asyncio.gather(*(source.reaches(target.address, *heard[id(target)]) for source, target in ways))
    return [
        BrokenPath(source.name, source.address, target.name, target.address, problem)
        for (source, target), problem in zip(ways, problems, strict=True)
        if problem
    ]


def left_out(hosts: Sequence[str], found: Collection[BrokenPath]) -> dict[str, BrokenPath]:
    """Return the hosts, with a reason each, without which all others reach each other; never `THIS`.

    The host with the most broken paths goes first, at a tie the last one of `hosts`: rank 0's host is the first there.
    """
    out: dict[str, BrokenPath] = {}
    while left := [cut for cut in found if not {cut.source, cut.target} & out.keys()]:
        many = Counter(host for cut in left for host in {cut.source, cut.target} - {THIS})
        worst = max(many, key=lambda host: (many[host], hosts.index(host) if host in hosts else -1))
        out[worst] = next(cut for cut in left if worst in {cut.source, cut.target})
    return out
