"""Who has held how many slots for how long, what of it was borrowed, and who lent it: folded from the journal.

`Usage` is a pure fold. `UsageBook` feeds it what the journal has got since the last question, in a thread of its own,
so that a long journal holds nobody up and is read once.

What an account holds beyond what it is entitled to (`entitlement`) is borrowed, what it leaves of that is unused. What
others hold of the unused is lent, by each who leaves some in proportion: in sum as much is lent as is borrowed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from datetime import UTC, datetime

from jupyter_elastic.protocol.wire import UsageRow
from jupyter_elastic.scheduler.entitlement import Account, entitlements
from jupyter_elastic.scheduler.journal import Journal
from jupyter_elastic.types import (
    Event,
    HostsChanged,
    JobEnded,
    JobId,
    JobStarted,
    JobSubmitted,
    RescaleRequested,
    SharesChanged,
    SlotId,
    SlotsReleased,
)

DAY_S = 86_400.0
KINDS = (JobSubmitted, JobStarted, RescaleRequested, SlotsReleased, JobEnded, HostsChanged, SharesChanged)
"""The events that matter."""
LEAST = 1e-9
"""Parts of a slot below that are the rounding of numbers."""


class Usage:
    """Slot-seconds by day (UTC), user and group. A slot counts from its lease until it is free again.

    Slots for servers alone are not counted.
    """

    def __init__(self) -> None:
        self._jobs: dict[JobId, Account] = {}
        """Whose the jobs are that are not over."""
        self._there: Counter[Account] = Counter()
        """How many of these each account has; those that have none are left out."""
        self._slots: dict[SlotId, Account] = {}
        """Whose each slot is that is not free."""
        self._for_servers: set[SlotId] = set()
        """Slots that are for servers alone, and nobody's share."""
        self._capacity = 0
        self._shares = SharesChanged()
        self._at = 0.0
        """Up to when the sums count."""
        self._due: dict[Account, float] | None = None
        """What each account is entitled to; None: to be counted again."""
        self._rates: dict[Account, tuple[float, float, float]] | None = {}
        """Slots that each account holds, has borrowed and has lent since then; None: to be counted again."""
        self._sums: defaultdict[tuple[int, Account], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def take(self, event: Event) -> None:
        """Fold an event; they come in their order."""
        self._count(event.at, self._sums)
        self._at = max(self._at, event.at)
        match event.data:
            case JobSubmitted(job=job, owner=owner, spec=spec):
                account = self._jobs[job] = (owner, spec.group)
                if account not in self._there:
                    self._due = None
                self._there[account] += 1
            case JobStarted(job=job, slots=slots) | RescaleRequested(job=job, slots=slots):
                for slot in slots:
                    if slot not in self._for_servers:
                        self._slots.setdefault(slot, self._jobs[job])
            case SlotsReleased(slots=slots):
                for slot in slots:
                    self._slots.pop(slot, None)
            case JobEnded(job=job) if (ended := self._jobs.pop(job, None)) is not None:
                self._there[ended] -= 1
                if not self._there[ended]:
                    del self._there[ended]
                    self._due = None
            case HostsChanged(hosts=hosts):
                shared = [slot for host in hosts for slot in host.slots if not slot.for_servers]
                self._capacity, self._due = sum(not slot.out for slot in shared), None
                self._for_servers = {
                    host.slot_id(slot.index) for host in hosts for slot in host.slots if slot.for_servers
                }
            case SharesChanged() as shares:
                self._shares, self._due = shares, None
        self._rates = None

    def rows(self, since: float, now: float) -> list[UsageRow]:
        """What was used on the days from that of `since` on, with what is held until `now`, by day, user and group."""
        sums = defaultdict(lambda: [0.0, 0.0, 0.0], {key: list(found) for key, found in self._sums.items()})
        self._count(now, sums)
        return [
            UsageRow(
                day=datetime.fromtimestamp(day * DAY_S, UTC).date().isoformat(),
                user=user,
                group=group,
                slot_s=used,
                borrowed_s=borrowed,
                lent_s=lent,
            )
            for (day, (user, group)), (used, borrowed, lent) in sorted(sums.items())
            if day >= since // DAY_S and (used or lent)
        ]

    def _count(self, until: float, sums: defaultdict[tuple[int, Account], list[float]]) -> None:
        """Add what was held from `_at` to `until`, day by day."""
        began = self._at
        if began >= until:
            return
        if self._rates is None:
            self._rates = self._counted()
        while began < until:
            day = int(began // DAY_S)
            end = min(until, (day + 1) * DAY_S)
            for account, rates in self._rates.items():
                found = sums[day, account]
                for which, rate in enumerate(rates):
                    found[which] += rate * (end - began)
            began = end

    def _counted(self) -> dict[Account, tuple[float, float, float]]:
        """The rates now, of those accounts that have any."""
        held = Counter(self._slots.values())
        if not held:
            return {}  # nobody has anything to borrow
        if self._due is None:
            self._due = entitlements(self._capacity, self._there, self._shares)
        due = self._due
        over = {account: more for account, slots in held.items() if (more := slots - due.get(account, 0.0)) > LEAST}
        unused = {account: rest for account, slots in due.items() if (rest := slots - held[account]) > LEAST}
        part = min(1.0, sum(over.values()) / sum(unused.values())) if unused else 0.0
        lent = {account: rest * part for account, rest in unused.items()} if part else {}
        return {
            account: (float(held[account]), over.get(account, 0.0), lent.get(account, 0.0))
            for account in held.keys() | lent.keys()
        }


class UsageBook:
    """The usage of a pool's whole history."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._usage = Usage()
        self._seq = 0
        """Of the last event that was folded."""
        self._reading = asyncio.Lock()

    async def rows(self, since: float, now: float) -> list[UsageRow]:
        """As `Usage.rows`. JournalError where the journal is damaged."""
        async with self._reading:
            return await asyncio.to_thread(self._read, since, now)

    def _read(self, since: float, now: float) -> list[UsageRow]:
        for event in self._journal.of_kinds(self._seq, tuple(kind.__name__ for kind in KINDS)):
            self._usage.take(event)
            self._seq = event.seq
        return self._usage.rows(since, now)
