"""Compute from the journal how long users held slots, which of these were borrowed, and who lent them.

`Usage` is a pure fold. Slots that an account holds beyond its entitlement (`entitlement`)
are borrowed, those that it leaves of its entitlement are unused. Slots of the unused that others hold are lent, by each
lender in proportion: in sum as many slots are lent as are borrowed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime

from jupyter_elastic.protocol.wire import UsageRow
from jupyter_elastic.scheduler.journal.entitlement import Account, entitlements
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
"""Kinds of events that change usage."""
LEAST = 1e-9
"""Parts of a slot below which a difference is rounding."""


class Usage:
    """Slot-seconds by day (UTC), user and group. A slot counts from its lease until it is free again.

    Slots for servers alone are not counted.
    """

    def __init__(self) -> None:
        self._jobs: dict[JobId, Account] = {}
        """Accounts of unfinished jobs."""
        self._there: Counter[Account] = Counter()
        """Number of unfinished jobs of each account that has some."""
        self._slots: dict[SlotId, Account] = {}
        """Account of each slot that is not free."""
        self._for_servers: set[SlotId] = set()
        """Slots for servers alone, which count for no account."""
        self._capacity = 0
        self._shares = SharesChanged()
        self._at = 0.0
        """Time up to which the sums count."""
        self._due: dict[Account, float] | None = None
        """Slots that each account is entitled to; None: to be computed again."""
        self._rates: dict[Account, tuple[float, float, float]] | None = {}
        """Slots that each account holds, has borrowed and has lent since then; None: to be computed again."""
        self._sums: defaultdict[tuple[int, Account], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def take(self, event: Event) -> None:
        """Fold an event; events come in their order."""
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
        """Return the use from the day of `since` on, with slots held until `now`, by day, user and group."""
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
        """Add the slots held from `_at` to `until` to the sums, day by day."""
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
        """Return the present rates of the accounts that have any."""
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
