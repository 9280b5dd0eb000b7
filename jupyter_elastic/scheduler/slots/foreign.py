"""Find processes on leased GPUs that are not of the users who have leased them. Pure.

A process counts if two polls in a row see it under the same lease: one that is just ending, or a slot that has just
changed hands, is nobody's fault. Nothing is done to it: its user, the slot's owner and administrators are informed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from jupyter_elastic.types import GpuProcess, Host, JobId, SlotId


class Holder(NamedTuple):
    """Lease of a slot."""

    job: JobId
    attempt: int
    uid: int | None
    """UNIX id of the owner. None: the owner connected by a key, and any process may be the owner's."""


Sighting: TypeAlias = tuple[SlotId, Holder, int, float]
"""A process on a slot, by pid and start time, under a lease."""


def judge(
    hosts: tuple[Host, ...], holders: Mapping[SlotId, Holder], before: frozenset[Sighting]
) -> tuple[tuple[Host, ...], frozenset[Sighting]]:
    """Judge the processes that a source has seen.

    Args:
        hosts: The source's hosts, with all processes on slots that are leased.
        holders: The present leases.
        before: Sightings of suspicious processes at the last poll.

    Returns:
        The hosts with foreign processes only, and the present sightings, for the next poll.
    """
    suspicious: set[Sighting] = set()

    def foreign(slot: SlotId, process: GpuProcess) -> bool:
        holder = holders.get(slot)
        if holder is None or holder.uid is None or process.uid == holder.uid:
            return False
        sighting = (slot, holder, process.pid, process.started_at)
        suspicious.add(sighting)
        return sighting in before

    judged = []
    for host in hosts:
        slots = []
        for slot in host.slots:
            found = tuple(process for process in slot.processes if foreign(host.slot_id(slot.index), process))
            slots.append(slot if found == slot.processes else replace(slot, processes=found))
        judged.append(replace(host, slots=tuple(slots)))
    return tuple(judged), frozenset(suspicious)
