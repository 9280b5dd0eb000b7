"""Whether hosts reach each other at the addresses of the group's data; a hand may be reached by another way."""

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


class Place(Protocol):
    """A host as the others see it."""

    @property
    def name(self) -> str:
        """The host's."""
        ...

    @property
    def address(self) -> str:
        """By which the others reach it."""
        ...

    async def listen(self) -> tuple[int, bytes]:
        """Wait there for some seconds for somebody who knows a token; the port and the token. EngineError."""
        ...

    async def reaches(self, address: str, port: int, token: bytes) -> str:
        """Why the token can't be brought there from here; empty: it can. EngineError."""
        ...


class ThisHost:
    """The one that the driver is on, as it is seen from `other`, an address."""

    name = THIS

    def __init__(self, other: str) -> None:
        self.address = reachability.toward(other)

    async def listen(self) -> tuple[int, bytes]:
        """See `Place`."""
        token = secrets.token_bytes(32)
        try:
            return await reachability.listen(self.address, token), token
        except OSError as problem:
            raise EngineError(f"nothing can listen at this host's address {self.address}: {problem}") from problem

    async def reaches(self, address: str, port: int, token: bytes) -> str:
        """See `Place`."""
        return await reachability.dial(address, port, token)


class Cut(Struct, frozen=True):
    """One host can't be reached from another."""

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


async def cuts(pairs: Iterable[tuple[Place, Place]]) -> list[Cut]:
    """The ways that are cut, of those between the two of each pair, both directions. EngineError if one can't try."""
    pairs = list(pairs)
    places = list({id(place): place for pair in pairs for place in pair}.values())
    heard = dict(zip(map(id, places), await asyncio.gather(*(place.listen() for place in places)), strict=True))
    ways = [way for one, other in pairs for way in ((one, other), (other, one))]
    problems = await asyncio.gather(*(source.reaches(target.address, *heard[id(target)]) for source, target in ways))
    return [
        Cut(source.name, source.address, target.name, target.address, problem)
        for (source, target), problem in zip(ways, problems, strict=True)
        if problem
    ]


def left_out(hosts: Sequence[str], found: Collection[Cut]) -> dict[str, Cut]:
    """The hosts, with a reason each, without which all others reach each other; `THIS` is none of them.

    The one with the most ways cut goes first, of several the last one of `hosts`: rank 0's comes first there.
    """
    out: dict[str, Cut] = {}
    while left := [cut for cut in found if not {cut.source, cut.target} & out.keys()]:
        many = Counter(host for cut in left for host in {cut.source, cut.target} - {THIS})
        worst = max(many, key=lambda host: (many[host], hosts.index(host) if host in hosts else -1))
        out[worst] = next(cut for cut in left if worst in {cut.source, cut.target})
    return out
