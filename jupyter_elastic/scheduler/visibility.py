"""What a user sees of a pool that he shares with others: of his own jobs all, as administrators do of every job.

Of somebody else's job he sees whose it is, its name, its state, its slots and what the policy says of it. `_SEEN` names
each field of that: what a later version adds is hidden until it is named here. Pure: knows records and rights.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.scheduler.auth import Caller, Rights, name_of
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
"""Jobs that are shown without a pause."""
DRAFTS = 10_000
"""Jobs as others see them that are kept: some lists."""

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
"""By record, the fields that everybody sees; a record that is not here is seen by its owner and administrators only."""
_PICK = {kind: attrgetter(*names, names[0]) for kind, names in _SEEN.items()}
"""Gets them at once: a list may have thousands of jobs. One more than there are, so that it is a tuple in any case."""
_BLANK: dict[type[Struct], dict[str, Any]] = {JobSpec: {"folder": "", "python": "", "engine": "-"}}
"""What stands for a hidden field that has no default, or whose default would say something."""


def _no_reason(_job: JobId) -> str:
    return ""


class Visibility:
    """Decides what of a record a user sees. With `hide_names` others' jobs are called by their number."""

    def __init__(self, rights: Rights, *, hide_names: bool = False) -> None:
        self._rights = rights
        self._hide_names = hide_names
        self._drafts: dict[tuple[type, JobId], tuple[JobInfo | JobView, str, Any]] = {}
        """What others see of a job, beside the record and the reason that it was made of; these two say if it holds."""

    def whole(self, user: Caller, owner: str | None) -> bool:
        """Whether `user` sees all of what is `owner`'s."""
        return name_of(user) == owner or self._rights.sees_all(user)

    def job(self, user: Caller, record: _R, policys_reason: Callable[[JobId], str] = _no_reason) -> _R:
        """What `user` sees of a job; to others its reason is the policy's."""
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
        """What `user` sees of many jobs, built in parts of a millisecond at most, after each of which it yields."""
        seen: list[_R] = []
        for at in range(0, len(records), PART):
            seen += [self.job(user, record, policys_reason) for record in records[at : at + PART]]
            yield
        return tuple(seen)

    def view(self, user: Caller, view: View) -> Generator[None, None, View]:
        """What `user` sees of a policy's view, in such parts."""
        seen = yield from self.jobs(user, view.jobs)
        used, lengths = (view.used, view.lengths) if self._rights.is_admin(user) else ({}, {})
        return replace(view, jobs=seen, memo=None, used=used, lengths=lengths)

    def event(self, user: Caller, event: Event, owner: str | None) -> Event | None:
        """What `user` sees of an event; None: nothing. `owner` is that of the job it is about, None: not known."""
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
        """What `user` sees of slots; how others call a session, and what of it stays in memory, is theirs."""
        return tuple(
            replace(slot, pinned="kept by a session") if slot.pinned and not self.whole(user, slot.owner) else slot
            for slot in slots
        )

    def _public(self, record: Any, job: JobId | None, **known: Any) -> Any:
        """Those fields that everybody sees; `known`: what stands for some of them."""
        kind = type(record)
        fields = dict(zip(_SEEN[kind], _PICK[kind](record), strict=False)) | known
        if "spec" in fields:
            fields["spec"] = self._public(fields["spec"], job)
        if self._hide_names and "name" in fields and job is not None:
            fields["name"] = f"job {job}"
        return kind(**_BLANK.get(kind, {}), **fields)


def _as_seen(host: Host, user: str) -> Host:
    """Who can't reach a host is nobody else's business: the reasons name files of theirs."""
    return replace(host, unreachable={one: why for one, why in host.unreachable.items() if one == user})


def _expected_s(job: JobView) -> float | None:
    """How long the job is expected to run at its least size, so that a what-if needs none of its measurements."""
    if job.profile.remaining is None:
        return job.estimate_s
    return float(round((work_left(job) + job.attained_s) / max(1, job.min_slots)))
