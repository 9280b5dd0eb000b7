"""Which processes on leased GPUs are not of the users who have leased them. Pure.

A process counts when it is seen at two looks in a row under the same lease: one that is just ending, or a slot that has
just changed hands, is nobody's fault. Nothing is done to it: its user, the slot's owner and administrators are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from jupyter_elastic.types import GpuProcess, Host, JobId, SlotId


class Holder(NamedTuple):
    """Who has leased a slot."""

    job: JobId
    attempt: int
    uid: int | None
    """The owner's UNIX id. None: the owner has come by a key, and any process may be the owner's."""


Sighting: TypeAlias = tuple[SlotId, Holder, int, float]
"""A process on a slot, by pid and start time, under a lease."""


def judge(
    hosts: tuple[Host, ...], holders: Mapping[SlotId, Holder], before: frozenset[Sighting]
) -> tuple[tuple[Host, ...], frozenset[Sighting]]:
    """What the pool is to know of the processes that a source has seen.

    Args:
        hosts: As the source sees them, with all processes on slots that it was told are leased.
        holders: The leases now.
        before: What was suspicious at the last look.

    Returns:
        The hosts with those processes only that are foreign; and what is suspicious now, for the next look.
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
