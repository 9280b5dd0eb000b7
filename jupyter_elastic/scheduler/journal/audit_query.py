"""Format the journal's decisions and refusals as lines that people read.

`row` is pure. `AuditQuery` reads the journal on demand in a thread of its own. Must not know which user may read what.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from jupyter_elastic.protocol.wire import Audited, AuditRow, ReadAudit
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.types import (
    AsksRefused,
    BooksRestored,
    DrainsChanged,
    Event,
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
    StopRequested,
    UnpinRequested,
)

KINDS = (
    JobSubmitted, JobStarted, RescaleRequested, StopRequested, JobRequeued, JobResized, JobEnded, PolicyUsed,
    PlanRejected, DrainsChanged, KeyRegistered, KeyRevoked, AsksRefused, BooksRestored, UnpinRequested,
)  # fmt: skip
"""Kinds of events that record a user's decision."""
REASON_CHARS = 500
MAX_ROWS = 2_000
"""Rows in one answer: a number that surely fits into a frame."""


def row(event: Event, owners: Mapping[JobId, str]) -> AuditRow:
    """Return the line of an event of `KINDS`; `owners` gives the owners of jobs."""
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


class AuditQuery:
    """Queries over the audit log, one at a time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._reading = asyncio.Lock()

    async def rows(self, ask: ReadAudit, own: str | None) -> Audited:
        """Return the requested rows; `own`: only those by or about that user. JournalError as `Journal`."""
        async with self._reading:
            return await asyncio.to_thread(self._read, ask, own)

    def _read(self, ask: ReadAudit, own: str | None) -> Audited:
        owners = self._journal.owners()
        found: deque[AuditRow] = deque(maxlen=min(max(ask.limit, 1), MAX_ROWS))
        more = False
        for event in self._journal.of_kinds(self._journal.before(ask.since), tuple(kind.__name__ for kind in KINDS)):
            if ask.before is not None and event.seq >= ask.before:
                break
            one = row(event, owners)
            wanted = own in {None, one.user, one.by} and ask.user in {"", one.user, one.by}
            if wanted and ask.job in {None, one.job}:
                more = more or len(found) == found.maxlen
                found.append(one)
        return Audited(rows=tuple(found), more=more)
