"""When hosts on demand are asked for and given back. Pure.

The rules are those of HyperQueue's automatic allocation: one allocation waits at a time, at most so many hosts are
there, each for a limited time; one that is idle is given back; after failures nobody is asked any more until the user
says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.platform.hosts_on_demand import Allocation, HostSource, SourceStatus

BACKLOG = 1
"""So many allocations may wait, or begin, at a time."""
FAILED_SUBMITS, FAILED_STARTS = 10, 3
"""After so many in a row no more are asked for."""


class Known(Struct, frozen=True, kw_only=True):
    """What is said of an allocation by who gave it."""

    runs: bool
    node: str = ""
    reach: str = ""
    """The way there, as `HostAddress` has it."""
    until: float | None = None
    """When it ends, in seconds since the epoch."""


class Submit(Struct, frozen=True):
    """Ask for a host."""


class Visit(Struct, frozen=True):
    """The allocation has begun: see whether a hand answers there, and make it a host of the pool."""

    allocation: Allocation
    known: Known


class GiveBack(Struct, frozen=True):
    """Take the host, if it is one, out of the pool, and end the allocation, unless it has `ended`."""

    allocation: Allocation
    ended: bool = False


class Ends(Struct, frozen=True):
    """It is known now, or known anew, when the host goes."""

    allocation: Allocation


Action: TypeAlias = Submit | Visit | GiveBack | Ends


def room(source: HostSource, status: SourceStatus) -> int:
    """Slots that the source could still bring, beyond those of hosts that are there."""
    return max(source.max_hosts - sum(bool(one.host) for one in status.allocations), 0) * source.slots


def decide(
    source: HostSource,
    status: SourceStatus,
    known: Mapping[str, Known],
    demand: int,
    used: Collection[str],
    now: float,
) -> tuple[SourceStatus, list[Action]]:
    """What is to be done, and what is noted of it.

    Args:
        source: What the user has set up.
        status: What was noted before.
        known: The allocations that there are, by number; one that is missing has ended.
        demand: Slots that the queue could use beyond those that are there.
        used: Names of hosts on which a job has a slot.
        now: Seconds since the epoch.
    """
    if status.begun != source.begun:  # set up anew: what failed before does not count
        status = SourceStatus(begun=source.begun, kind=source.kind, allocations=status.allocations)
    kept: list[Allocation] = []
    actions: list[Action] = []
    for one in status.allocations:
        found = known.get(one.number)
        if found is None:
            actions.append(GiveBack(one, ended=True))
            if not one.host:
                status = start_failed(status, f"allocation {one.number} ended before its host was there")
            continue
        busy = demand > 0 or one.host in used
        one = replace(one, idle_since=None if busy else one.idle_since or now)  # noqa: PLW2901
        idle = one.idle_since is not None and now - one.idle_since >= source.idle_s
        if idle or (found.until is not None and now >= found.until):
            actions.append(GiveBack(one))
            continue
        moved = found.runs and one.until != found.until
        if moved:
            one = replace(one, until=found.until)  # noqa: PLW2901
        kept.append(one)
        if found.runs and not one.host:
            actions.append(Visit(one, found))
        elif moved:
            actions.append(Ends(one))
    coming = sum(not one.host for one in kept)
    if demand > 0 and not status.paused and coming < BACKLOG and len(kept) < source.max_hosts:
        actions.append(Submit())
    return replace(status, allocations=tuple(kept)), actions


def submitted(status: SourceStatus, number: str, now: float) -> SourceStatus:
    """A host was asked for."""
    more = (*status.allocations, Allocation(number=number, submitted_at=now))
    return replace(status, allocations=more, failed_submits=0)


def submit_failed(status: SourceStatus, why: str) -> SourceStatus:
    """It could not be asked for."""
    failed = status.failed_submits + 1
    return replace(status, failed_submits=failed, why=why, paused=status.paused or failed >= FAILED_SUBMITS)


def started(status: SourceStatus, number: str, host: str) -> SourceStatus:
    """The allocation is a host of the pool now."""
    changed = (replace(one, host=host) if one.number == number else one for one in status.allocations)
    return replace(status, allocations=tuple(changed), failed_starts=0, why="")


def start_failed(status: SourceStatus, why: str, number: str = "") -> SourceStatus:
    """The allocation will be no host."""
    failed = status.failed_starts + 1
    return replace(
        status,
        allocations=without(status.allocations, number),
        failed_starts=failed,
        why=why,
        paused=status.paused or failed >= FAILED_STARTS,
    )


def without(allocations: Sequence[Allocation], number: str) -> tuple[Allocation, ...]:
    """The others."""
    return tuple(one for one in allocations if one.number != number)
