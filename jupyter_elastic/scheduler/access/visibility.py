"""Decide what users see of a shared pool: all of their own jobs; administrators see all of every job.

Of another user's job a user sees the owner, name, state, slots and the policy's reason. `_SEEN` names each such field:
a field that a later version adds is hidden until it is named here. Pure: knows records and rights.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.scheduler.access.auth import Caller, Rights, name_of
from jupyter_elastic.scheduler.policies.speed import work_left
from jupyter_elastic.types import (
    AgentChanged,
    AsksRefused,
    BooksRestored,
    DrainsChanged,
    Event,
    Host,
    HostsChanged,
    JobEnded,
    JobId,
    JobInfo,
    JobRequeued,
    JobResized,
    JobRunning,
    JobsForgotten,
    JobSpec,
    JobStarted,
    JobSubmitted,
    JobView,
    PlanAccepted,
    PlanRejected,
    PolicyUsed,
    RescaleRequested,
    SlotInfo,
    SlotsReleased,
    StopRequested,
    View,
)
from jupyter_elastic.types.texts import for_others

_R = TypeVar("_R", JobInfo, JobView)

PART = 50
"""Jobs that are converted without a pause."""
DRAFTS = 10_000
"""Maximum number of cached jobs as others see them: some lists."""

_RANGE = ("min_slots", "max_slots", "sizes", "min_servers", "max_servers", "preemptible")
_SEEN: dict[type[Struct], tuple[str, ...]] = {
    JobSpec: ("name", "group", "priority", "interactive", *_RANGE),
    JobInfo: (
        "job", "owner", "spec", "phase", "attempt", "generation", "slots", "draining", "elastic", "reason",
        "submitted_at", "started_at", "ended_at", "preemptions",
    ),
    JobView: (
        "job", "owner", "name", "group", "priority", *_RANGE, "phase", "size", "estimate_s",
        "submitted_at", "queued_at", "started_at", "changed_at", "attained_s", "run_s", "preemptions",
    ),
    JobSubmitted: ("job", "owner", "spec"),
    JobStarted: ("job", "attempt", "generation", "slots", "servers", "reason"),
    RescaleRequested: ("job", "attempt", "generation", "slots", "servers", "reason"),
    JobRunning: ("job", "attempt", "generation", "slots", "elastic"),
    StopRequested: ("job", "attempt", "how"),
    SlotsReleased: ("job", "attempt", "slots"),
    JobRequeued: ("job", "attempt", "cause"),
    JobResized: ("job", "min_slots", "max_slots", "sizes", "preemptible", "by"),
    JobEnded: ("job", "outcome"),
    JobsForgotten: ("jobs",),
    HostsChanged: ("hosts",),
    BooksRestored: ("next_job",),
    DrainsChanged: ("target", "drained", "drains"),
    PolicyUsed: ("name", "options", "previous", "reason"),
    PlanRejected: ("policy", "reason"),
    PlanAccepted: ("policy", "reasons"),
    AgentChanged: ("user", "connected"),
}  # fmt: skip
"""Fields that every user sees, by record; other records are for their owner and administrators only."""
_PICK = {kind: attrgetter(*names, names[0]) for kind, names in _SEEN.items()}
"""Fetch all fields in one call, since a list may have thousands of jobs; one name more makes the result a tuple."""
_BLANK: dict[type[Struct], dict[str, Any]] = {JobSpec: {"folder": "", "python": "", "engine": "-"}}
"""Values of hidden fields that have no default, or whose default would mean something."""


def _no_reason(_job: JobId) -> str:
    return ""


class Visibility:
    """Filter of records for a user; with `hide_names` others' jobs are named by their number."""

    def __init__(self, rights: Rights, *, hide_names: bool = False) -> None:
        self._rights = rights
        self._hide_names = hide_names
        self._drafts: dict[tuple[type, JobId], tuple[JobInfo | JobView, str, Any]] = {}
        """Jobs as others see them, with the record and the reason that they were made from, to tell if these hold."""

    def whole(self, user: Caller, owner: str | None) -> bool:
        """True if `user` sees all that belongs to `owner`."""
        return name_of(user) == owner or self._rights.sees_all(user)

    def job(self, user: Caller, record: _R, policys_reason: Callable[[JobId], str] = _no_reason) -> _R:
        """Return the job as `user` may see it; other users see the policy's reason."""
        if self.whole(user, record.owner):
            return record
        reason = policys_reason(record.job)
        key = (type(record), record.job)
        draft = self._drafts.get(key)
        if draft is None or draft[0] is not record or draft[1] != reason:
            if len(self._drafts) >= DRAFTS:
                self._drafts.clear()
            known = {"estimate_s": _expected_s(record)} if isinstance(record, JobView) else {"reason": reason}
            draft = self._drafts[key] = (record, reason, self._public(record, record.job, **known))
        seen: _R = draft[2]
        return seen

    def jobs(
        self, user: Caller, records: Sequence[_R], policys_reason: Callable[[JobId], str] = _no_reason
    ) -> Generator[None, None, tuple[_R, ...]]:
        """Return the jobs as `user` may see them; yields after each part of at most a millisecond."""
        seen: list[_R] = []
        for at in range(0, len(records), PART):
            seen += [self.job(user, record, policys_reason) for record in records[at : at + PART]]
            yield
        return tuple(seen)

    def view(self, user: Caller, view: View) -> Generator[None, None, View]:
        """Return a policy's view as `user` may see it, built in such parts."""
        seen = yield from self.jobs(user, view.jobs)
        used, lengths = (view.used, view.lengths) if self._rights.is_admin(user) else ({}, {})
        return replace(view, jobs=seen, memo=None, used=used, lengths=lengths)

    def event(self, user: Caller, event: Event, owner: str | None) -> Event | None:
        """Return the event as `user` may see it, or None; `owner` is the owner of its job, None if unknown."""
        data = event.data
        if isinstance(data, JobSubmitted):
            owner = data.owner
        elif isinstance(data, AgentChanged | AsksRefused):
            owner = data.user
        if self.whole(user, owner):
            return event
        if type(data) not in _SEEN:
            return None
        public = self._public(data, getattr(data, "job", None))
        if (isinstance(data, StopRequested) and data.how == "preempt") or (
            isinstance(data, JobRequeued) and data.cause == "preempted"
        ):
            public = replace(public, reason=data.reason)  # the policy's; of all others it is the user's or an error's
        if reason := getattr(public, "reason", ""):
            public = replace(public, reason=for_others(reason))
        if isinstance(data, HostsChanged):
            public = replace(public, hosts=tuple(_as_seen(host, name_of(user)) for host in data.hosts))
        return replace(event, data=public, cause="")  # the cause of a submit is its key

    def slots(self, user: Caller, slots: Iterable[SlotInfo]) -> tuple[SlotInfo, ...]:
        """Return the slots as `user` may see them; a session's name and retained memory are for its owner only."""
        return tuple(
            replace(slot, pinned="kept by a session") if slot.pinned and not self.whole(user, slot.owner) else slot
            for slot in slots
        )

    def _public(self, record: Any, job: JobId | None, **known: Any) -> Any:
        """Make a record of the fields that every user sees, some of them replaced by `known`."""
        kind = type(record)
        fields = dict(zip(_SEEN[kind], _PICK[kind](record), strict=False)) | known
        if "spec" in fields:
            fields["spec"] = self._public(fields["spec"], job)
        if self._hide_names and "name" in fields and job is not None:
            fields["name"] = f"job {job}"
        return kind(**_BLANK.get(kind, {}), **fields)


def _as_seen(host: Host, user: str) -> Host:
    """Drop other users' failures to reach the host; the reasons name files of theirs."""
    return replace(host, unreachable={one: why for one, why in host.unreachable.items() if one == user})


def _expected_s(job: JobView) -> float | None:
    """Return the expected seconds of the job at its minimum size, so that a what-if needs none of its measurements."""
    if job.profile.remaining is None:
        return job.estimate_s
    return float(round((work_left(job) + job.attained_s) / max(1, job.min_slots)))
