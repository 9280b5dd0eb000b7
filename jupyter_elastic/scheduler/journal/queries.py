"""Answer questions about the past from the journal: usage, decisions and past allocations.

Each kind of question is answered in a thread, one at a time, so that a long journal delays nobody. `row` is pure.
Must not know which user may read what.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import islice
from typing import ParamSpec, TypeVar

from msgspec.structs import replace

from jupyter_elastic.protocol.wire import Audited, AuditRow, ReadAudit, UsageRow
from jupyter_elastic.scheduler.core.state import State
from jupyter_elastic.scheduler.journal import slot_usage
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.types import (
    AsksRefused,
    BooksRestored,
    DrainsChanged,
    Event,
    HostsChanged,
    JobEnded,
    JobId,
    JobRequeued,
    JobResized,
    JobStarted,
    JobSubmitted,
    KeyRegistered,
    KeyRevoked,
    PlanRejected,
    PolicyUsed,
    RescaleRequested,
    SharesChanged,
    SlotsReleased,
    StopRequested,
    UnpinRequested,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")
AUDITED = (
    JobSubmitted, JobStarted, RescaleRequested, StopRequested, JobRequeued, JobResized, JobEnded, PolicyUsed,
    PlanRejected, DrainsChanged, KeyRegistered, KeyRevoked, AsksRefused, BooksRestored, UnpinRequested,
)  # fmt: skip
"""Kinds of events that record a user's decision."""
SHOWN = (
    JobSubmitted, JobStarted, RescaleRequested, SlotsReleased, JobRequeued, JobEnded, HostsChanged, PolicyUsed,
    SharesChanged,
)  # fmt: skip
"""Kinds of events that a page of past allocations needs."""
REASON_CHARS = 500
MAX_ROWS = 2_000
"""Rows in one answer: a number that surely fits into a frame."""
PAGE = 2_000
"""Events in one answer: as many as fit into a frame with usual jobs."""


def row(event: Event, owners: Mapping[JobId, str]) -> AuditRow:  # noqa: C901, PLR0912  a case for each event
    """Return the line of an event of `AUDITED`; `owners` gives the owners of jobs."""
    data = event.data
    job: JobId | None = getattr(data, "job", None)
    user, reason = owners.get(job, "") if job is not None else "", getattr(data, "reason", "")
    match data:
        case JobSubmitted(spec=spec):
            what = f"submitted {spec.name} for {spec.slot_numbers} slots"
        case JobStarted(slots=slots):
            what = f"started on {', '.join(slots)}"
        case RescaleRequested(slots=slots):
            what = f"goes on with {', '.join(slots)}"
        case StopRequested(how=how):
            what = f"is stopped ({how})"
        case UnpinRequested():
            what = "its session is to give back what it keeps"
        case JobRequeued(cause=cause):
            what = f"queued again ({cause})"
        case JobResized(min_slots=low, max_slots=high):
            what = f"may hold {low}:{high} slots"
        case JobEnded(outcome=outcome):
            what = outcome
        case PolicyUsed(name=name, previous=previous):
            what = f"policy {previous} is now {name}"
        case PlanRejected(policy=policy):
            what = f"a plan of {policy} was refused"
        case DrainsChanged(target=target, drained=drained, drains=drains):
            what = f"{target or 'the pool'} {'is drained' if drained else 'takes work again'}"
            reason = next((one.reason for one in drains if drained and one.target == target), "")
        case KeyRegistered(user=user):
            what = f"a key of {user} may connect"
        case KeyRevoked(user=user):
            what = f"a key of {user} may no longer connect"
        case BooksRestored(next_job=next_job):
            what = f"the journal was restored from a backup; the next job is {next_job}"
        case AsksRefused(user=user, ask=ask, code=code, count=count, message=message, about=about):
            times = "" if count == 1 else f" {count} times"
            what, reason, job = f"refused{times}: {ask or 'many kinds'} ({code or 'many reasons'})", message, about
        case _:
            what = type(data).__name__
    return AuditRow(
        seq=event.seq, at=event.at, by=event.by, user=user, job=job, what=what, reason=reason[:REASON_CHARS]
    )


class _Query:
    """Question that is answered in a thread, one at a time. JournalError if the journal is damaged."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._reading = asyncio.Lock()

    async def _in_thread(self, read: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        async with self._reading:
            return await asyncio.to_thread(read, *args, **kwargs)


class AuditQuery(_Query):
    """Queries over the audit log."""

    async def rows(self, ask: ReadAudit, own: str | None) -> Audited:
        """Return the requested rows; `own`: only those by or about that user."""
        return await self._in_thread(self._read, ask, own)

    def _read(self, ask: ReadAudit, own: str | None) -> Audited:
        owners = self._journal.owners()
        found: deque[AuditRow] = deque(maxlen=min(max(ask.limit, 1), MAX_ROWS))
        more = False
        for event in self._journal.of_kinds(self._journal.before(ask.since), tuple(kind.__name__ for kind in AUDITED)):
            if ask.before is not None and event.seq >= ask.before:
                break
            one = row(event, owners)
            wanted = own in {None, one.user, one.by} and ask.user in {"", one.user, one.by}
            if wanted and ask.job in {None, one.job}:
                more = more or len(found) == found.maxlen
                found.append(one)
        return Audited(rows=tuple(found), more=more)


class HistoryQuery(_Query):
    """Queries over past allocations, for a page that is opened later."""

    async def events(self, state: State, since: float, after: int, *, ended: bool = False) -> tuple[list[Event], bool]:
        """Return the next events after `after`, and if there are more.

        The first page begins with the oldest job in the state that had not ended at `since`. With `ended` there are all
        events of jobs that have ended since then, and of no others.
        """
        first = min(
            (job.submitted_seq for job in state.jobs.values() if (job.ended_at or since) >= since), default=None
        )
        return await self._in_thread(self._read, since, after, first, ended=ended)

    def _read(self, since: float, after: int, first: int | None, *, ended: bool) -> tuple[list[Event], bool]:
        if not after and not ended:
            after = self._journal.before(since)
            if first is not None:
                after = min(after, first - 1)
        kinds = tuple(kind.__name__ for kind in SHOWN)
        with closing(self._journal.of_kinds(max(after, 0), kinds, since if ended else None)) as found:
            page = [_short(event) for event in islice(found, PAGE + 1)]
        return page[:PAGE], len(page) > PAGE


def _short(event: Event) -> Event:
    """Drop long texts that no page shows."""
    return replace(event, data=replace(event.data, source="")) if isinstance(event.data, PolicyUsed) else event


class UsageQuery(_Query):
    """Queries for the usage over a pool's whole history, of which each event is read once."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self._usage = slot_usage.Usage()
        self._seq = 0
        """Number of the last event that was folded."""

    async def rows(self, since: float, now: float) -> list[UsageRow]:
        """Return `Usage.rows`."""
        return await self._in_thread(self._read, since, now)

    def _read(self, since: float, now: float) -> list[UsageRow]:
        for event in self._journal.of_kinds(self._seq, tuple(kind.__name__ for kind in slot_usage.KINDS)):
            self._usage.take(event)
            self._seq = event.seq
        return self._usage.rows(since, now)
