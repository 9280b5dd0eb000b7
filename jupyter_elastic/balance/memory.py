"""Remembers trainings' measurements of hosts and links, for the plans of later ones (pure).

A speed is one of a host in a workload, for another model takes another time a sample; a link is the same for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

KEPT_S = 30 * 24 * 3600.0
"""Seconds after which a figure is no longer used."""
MAX_ENTRIES = 10_000
"""Maximum number of remembered speeds, and of links: the newest."""


class Figure(msgspec.Struct, frozen=True):
    """A measured figure."""

    value: float
    """Samples/s, or bytes/s."""
    at: float
    """Time of the measurement, in seconds since 1970."""


class HostSpeed(Figure, frozen=True):
    """The speed of a host in a workload."""

    workload: str
    host: str


class Bandwidth(Figure, frozen=True):
    """The bandwidth of a link in one direction."""

    sender: str
    receiver: str


class Memory(msgspec.Struct, frozen=True):
    """All remembered figures."""

    speeds: tuple[HostSpeed, ...] = ()
    links: tuple[Bandwidth, ...] = ()


def speeds_of(memory: Memory, workload: str, hosts: Sequence[str], now: float) -> tuple[float, ...] | None:
    """Return the speed of each of these hosts in samples/s; None unless all are known."""
    known = {one.host: one.value for one in memory.speeds if one.workload == workload and _believed(one, now)}
    found = tuple(known.get(host, 0.0) for host in hosts)
    return found if all(found) else None


def bandwidth_of(memory: Memory, hosts: Sequence[str], now: float) -> tuple[tuple[float, ...], ...] | None:
    """Return bytes/s from each of these hosts (row) to each other (column); None unless all links are known."""
    known = {(one.sender, one.receiver): one.value for one in memory.links if _believed(one, now)}
    if not known.keys() >= {(a, b) for a in hosts for b in hosts if a != b}:
        return None
    return tuple(tuple(0.0 if a == b else known[a, b] for b in hosts) for a in hosts)


def with_speeds(memory: Memory, workload: str, hosts: Sequence[str], speeds: Sequence[float], now: float) -> Memory:
    """Return the memory after these speeds were measured."""
    new = [HostSpeed(v, now, workload, host) for host, v in zip(hosts, speeds, strict=True) if 0 < v < math.inf]
    replaced = {(one.workload, one.host) for one in new}
    kept = [one for one in memory.speeds if (one.workload, one.host) not in replaced]
    return msgspec.structs.replace(memory, speeds=(*kept, *new)[-MAX_ENTRIES:])


def with_links(memory: Memory, hosts: Sequence[str], bandwidth: Sequence[Sequence[float]], now: float) -> Memory:
    """Return the memory after these bandwidths were measured, from the host of the row to that of the column."""
    new = [
        Bandwidth(value, now, sender, receiver)
        for sender, row in zip(hosts, bandwidth, strict=True)
        for receiver, value in zip(hosts, row, strict=True)
        if sender != receiver and 0 <= value < math.inf
    ]
    replaced = {(one.sender, one.receiver) for one in new}
    kept = [one for one in memory.links if (one.sender, one.receiver) not in replaced]
    return msgspec.structs.replace(memory, links=(*kept, *new)[-MAX_ENTRIES:])


def _believed(figure: Figure, now: float) -> bool:
    """Return whether a figure is not too old, nor from the future (the clock was set back); a file may say anything."""
    return 0 <= now - figure.at <= KEPT_S and 0 <= figure.value < math.inf
