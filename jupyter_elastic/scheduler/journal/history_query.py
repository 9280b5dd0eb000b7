"""Read past allocations from the journal, for a page that is opened later.

Reads the journal on demand in a thread of its own, page by page. Must not know which user may see what.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from itertools import islice

from msgspec.structs import replace

from jupyter_elastic.scheduler.core.state import State
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.types import (
    Event,
    HostsChanged,
    JobEnded,
    JobRequeued,
    JobStarted,
    JobSubmitted,
    PolicyUsed,
    RescaleRequested,
    SharesChanged,
    SlotsReleased,
)

KINDS = (
    JobSubmitted, JobStarted, RescaleRequested, SlotsReleased, JobRequeued, JobEnded, HostsChanged, PolicyUsed,
    SharesChanged,
)  # fmt: skip
"""Kinds of events that a page needs."""
PAGE = 2_000
"""Events in one answer: as many as fit into a frame with usual jobs."""


class HistoryQuery:
    """Queries over past allocations, one at a time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._reading = asyncio.Lock()

    async def events(self, state: State, since: float, after: int, *, ended: bool = False) -> tuple[list[Event], bool]:
        """Return the next events after `after`, and if there are more. JournalError if the journal is damaged.

        The first page begins with the oldest job in the state that had not ended at `since`. With `ended` there are all
        events of jobs that have ended since then, and of no others.
        """
        first = min(
            (job.submitted_seq for job in state.jobs.values() if (job.ended_at or since) >= since), default=None
        )
        async with self._reading:
            return await asyncio.to_thread(self._read, since, after, first, ended=ended)

    def _read(self, since: float, after: int, first: int | None, *, ended: bool) -> tuple[list[Event], bool]:
        if not after and not ended:
            after = self._journal.before(since)
            if first is not None:
                after = min(after, first - 1)
        kinds = tuple(kind.__name__ for kind in KINDS)
        with closing(self._journal.of_kinds(max(after, 0), kinds, since if ended else None)) as found:
            page = [_short(event) for event in islice(found, PAGE + 1)]
        return page[:PAGE], len(page) > PAGE


def _short(event: Event) -> Event:
    """Drop long texts that no page shows."""
    return replace(event, data=replace(event.data, source="")) if isinstance(event.data, PolicyUsed) else event
