"""Choose the slots that a job gets and those that it gives back.

Knows host names, free slots and a job's slots. Must not know policies or time. A job keeps its slots as far as it can;
new slots come from hosts that it already uses, then from the one host that is left with the least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from jupyter_elastic.types import SlotId


class Free:
    """Free slots by host, hosts in the pool's order. `take` removes the slots that it returns."""

    def __init__(self, slots: Iterable[tuple[str, SlotId]]) -> None:
        """Begin with (host, slot) pairs in the pool's order."""
        self._slots: dict[str, list[SlotId]] = {}
        for host, slot in slots:
            self._slots.setdefault(host, []).append(slot)
        self._rank = {host: rank for rank, host in enumerate(self._slots)}

    def __len__(self) -> int:
        return sum(len(slots) for slots in self._slots.values())

    def on(self, host: str) -> int:
        """Count the free slots of this host."""
        return len(self._slots.get(host, ()))

    def on_all(self, hosts: Collection[str]) -> int:
        """Count the free slots of these hosts."""
        return sum(len(slots) for host, slots in self._slots.items() if host in hosts)

    def take(
        self,
        count: int,
        near: Sequence[str] = (),
        only: Collection[str] | None = None,
        prefer: Sequence[SlotId] = (),
    ) -> tuple[SlotId, ...]:
        """Take `count` slots, or fewer if there aren't as many, for a job that already uses the hosts `near`.

        With `only` all are on these hosts. Of a host's slots those of `prefer` come first.
        """
        taken: list[SlotId] = []
        held = Counter(host for host in near if only is None or host in only)
        for host in sorted((h for h in held if h in self._slots), key=lambda h: (-held[h], self._rank[h])):
            taken += self._from(host, count - len(taken), prefer)
        while len(taken) < count:
            missing = count - len(taken)
            sizes = {
                host: len(slots) for host, slots in self._slots.items() if slots and (only is None or host in only)
            }
            if not sizes:
                break
            fitting = [host for host, size in sizes.items() if size >= missing]
            if fitting:
                host = min(fitting, key=lambda h: (sizes[h], self._rank[h]))
            else:
                host = min(sizes, key=lambda h: (-sizes[h], self._rank[h]))
            taken += self._from(host, missing, prefer)
        return tuple(taken)

    def _from(self, host: str, count: int, prefer: Sequence[SlotId]) -> list[SlotId]:
        slots = self._slots[host]
        if first := [slot for slot in prefer if slot in slots]:
            slots = [*first, *(slot for slot in slots if slot not in first)]
        taken, self._slots[host] = slots[:count], slots[count:]
        return taken


def keep(held: Sequence[SlotId], hosts: Sequence[str], count: int) -> tuple[SlotId, ...]:
    """Return the `count` slots that a shrinking job keeps, in their old order.

    The job leaves first the hosts on which it has the fewest slots, and on a host the newest slot first: the oldest
    member of the group stays rank 0 unless its host is given up.
    """
    on = Counter(hosts)
    first = {host: position for position, host in reversed(list(enumerate(hosts)))}
    order = sorted(range(len(held)), key=lambda i: (-on[hosts[i]], first[hosts[i]], i))
    return tuple(held[i] for i in sorted(order[:count]))
