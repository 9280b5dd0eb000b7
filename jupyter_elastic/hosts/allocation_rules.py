"""Decides when hosts on demand are requested and given back. Pure.

The rules are those of HyperQueue's automatic allocation: one allocation waits at a time, a source has a maximum number
of hosts, each for a limited time; an idle host is given back; after repeated failures the source pauses until the user
resumes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.hostfiles.hosts_on_demand import HostAllocation, HostSource, KnownAllocation, SourceStatus

BACKLOG = 1
"""Maximum number of allocations that wait or start at a time."""
FAILED_SUBMITS, FAILED_STARTS = 10, 3
"""Consecutive failures after which a source pauses."""


class RequestHost(Struct, frozen=True):
    """Request a host."""


class Visit(Struct, frozen=True):
    """The allocation has begun: check that a host agent answers there, and add the host to the pool."""

    allocation: HostAllocation
    known: KnownAllocation


class ReturnHost(Struct, frozen=True):
    """Take the allocation's host, if any, out of the pool, and end the allocation unless it has `ended`."""

    allocation: HostAllocation
    ended: bool = False


class Ends(Struct, frozen=True):
    """Record the host's new end time."""

    allocation: HostAllocation


Action: TypeAlias = RequestHost | Visit | ReturnHost | Ends


def room(source: HostSource, status: SourceStatus) -> int:
    """Return the slots that the source could still add to those of its present hosts."""
    return max(source.max_hosts - sum(bool(one.host) for one in status.allocations), 0) * source.slots


def decide(
    source: HostSource,
    status: SourceStatus,
    known: Mapping[str, KnownAllocation],
    demand: int,
    used: Collection[str],
    now: float,
) -> tuple[SourceStatus, list[Action]]:
    """Return the source's next status and the actions to take.

    Args:
        source: The user's settings.
        status: The status recorded before.
        known: The provider's allocations by number; a missing one has ended.
        demand: Slots that the queue could use beyond the pool's.
        used: Names of hosts on which a job has a slot.
        now: Seconds since the epoch.
    """
    if status.begun != source.begun:  # set up anew: what failed before does not count
        status = SourceStatus(begun=source.begun, kind=source.kind, allocations=status.allocations)
    kept: list[HostAllocation] = []
    actions: list[Action] = []
    for one in status.allocations:
        found = known.get(one.number)
        if found is None:
            actions.append(ReturnHost(one, ended=True))
            if not one.host:
                status = start_failed(status, f"allocation {one.number} ended before its host was there")
            continue
        busy = demand > 0 or one.host in used
        one = replace(one, idle_since=None if busy else one.idle_since or now)  # noqa: PLW2901
        idle = one.idle_since is not None and now - one.idle_since >= source.idle_s
        if idle or (found.until is not None and now >= found.until):
            actions.append(ReturnHost(one))
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
        actions.append(RequestHost())
    return replace(status, allocations=tuple(kept)), actions


def submitted(status: SourceStatus, number: str, now: float) -> SourceStatus:
    """Return the status after a successful request for a host."""
    more = (*status.allocations, HostAllocation(number=number, submitted_at=now))
    return replace(status, allocations=more, failed_submits=0)


def submit_failed(status: SourceStatus, why: str) -> SourceStatus:
    """Return the status after a failed request for a host."""
    failed = status.failed_submits + 1
    return replace(status, failed_submits=failed, why=why, paused=status.paused or failed >= FAILED_SUBMITS)


def started(status: SourceStatus, number: str, host: str) -> SourceStatus:
    """Return the status after the allocation became a host of the pool."""
    changed = (replace(one, host=host) if one.number == number else one for one in status.allocations)
    return replace(status, allocations=tuple(changed), failed_starts=0, why="")


def start_failed(status: SourceStatus, why: str, number: str = "") -> SourceStatus:
    """Return the status after an allocation that brought no host."""
    failed = status.failed_starts + 1
    return replace(
        status,
        allocations=without(status.allocations, number),
        failed_starts=failed,
        why=why,
        paused=status.paused or failed >= FAILED_STARTS,
    )


def without(allocations: Sequence[HostAllocation], number: str) -> tuple[HostAllocation, ...]:
    """Return the allocations other than `number`."""
    return tuple(one for one in allocations if one.number != number)
