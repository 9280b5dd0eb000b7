"""Who has held how many slots for how long, by day: folded from the journal when somebody asks.

`Usage` is a pure fold. `UsageBook` feeds it what the journal has got since the last question, in a thread of its own,
so that a long journal holds nobody up and is read once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime

from jupyter_elastic.protocol.wire import UsageRow
from jupyter_elastic.scheduler.journal import Journal
from jupyter_elastic.types import (
    Event,
    JobEnded,
    JobId,
    JobStarted,
    JobSubmitted,
    RescaleRequested,
    SlotId,
    SlotsReleased,
)

DAY_S = 86_400.0
KINDS = (JobSubmitted, JobStarted, RescaleRequested, SlotsReleased, JobEnded)
"""The events that matter."""


class Usage:
    """Slot-seconds by day (UTC), user and group. A slot counts from its lease until it is free again."""

    def __init__(self) -> None:
        self._users: dict[JobId, tuple[str, str]] = {}
        """Owner and group of the jobs that are not over."""
        self._held: dict[SlotId, tuple[JobId, float]] = {}
        """Whose each slot is, and since when."""
        self._seconds: defaultdict[tuple[int, str, str], float] = defaultdict(float)

    def take(self, event: Event) -> None:
        """Fold an event; they come in their order."""
        match event.data:
            case JobSubmitted(job=job, owner=owner, spec=spec):
                self._users[job] = (owner, spec.group)
            case JobStarted(job=job, slots=slots) | RescaleRequested(job=job, slots=slots):
                for slot in slots:
                    self._held.setdefault(slot, (job, event.at))
            case SlotsReleased(slots=slots):
                for slot in slots:
                    if slot in self._held:
                        for key, seconds in self._parts(*self._held.pop(slot), event.at):
                            self._seconds[key] += seconds
            case JobEnded(job=job):
                self._users.pop(job, None)

    def rows(self, since: float, now: float) -> list[UsageRow]:
        """What was used on the days from that of `since` on, with what is held until `now`, by day, user and group."""
        seconds = self._seconds.copy()
        for job, began in self._held.values():
            for key, part in self._parts(job, began, now):
                seconds[key] += part
        return [
            UsageRow(
                day=datetime.fromtimestamp(day * DAY_S, UTC).date().isoformat(), user=user, group=group, slot_s=used
            )
            for (day, user, group), used in sorted(seconds.items())
            if day >= since // DAY_S and used > 0
        ]

    def _parts(self, job: JobId, began: float, ended: float) -> Iterator[tuple[tuple[int, str, str], float]]:
        """The part of each day in a time for which a job held a slot."""
        while began < ended:
            day = int(began // DAY_S)
            until = min(ended, (day + 1) * DAY_S)
            yield (day, *self._users[job]), until - began
            began = until


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
