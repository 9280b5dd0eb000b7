"""Show the state to others: the policy's view, and the jobs and slots of screens.

Caches drafts that did not change since the last view; an event discards the draft of its job. Shows nothing that a
policy could not have learned from a journal.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Literal

from msgspec import convert
from msgspec.structs import replace

from jupyter_elastic.scheduler.core.rule import Rules, reserved
from jupyter_elastic.scheduler.core.spare import spared
from jupyter_elastic.scheduler.core.state import Job, SlotState, State, starts_with
from jupyter_elastic.scheduler.core.used import used_s
from jupyter_elastic.types import (
    AnyEventData,
    BooksRestored,
    DrainsChanged,
    HostsChanged,
    HostView,
    JobEnded,
    JobId,
    JobInfo,
    JobStarted,
    JobView,
    RescaleRequested,
    Retention,
    Size,
    SlotId,
    SlotInfo,
    SlotsReleased,
    StopRequested,
    View,
)
from jupyter_elastic.types.texts import also_used_by, pinned_by

INFOS = 10_000
"""Maximum number of cached job records: some lists of several users."""
_MOVES_SLOTS = (HostsChanged, DrainsChanged, JobStarted, RescaleRequested, SlotsReleased, StopRequested, JobEnded)


class Views:
    """A cache of the policy's views of one state."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._jobs: dict[JobId, JobView] = {}
        self._stale: set[JobId] | None = None
        """Jobs to draw again; None before the first view: all."""
        self._hosts: tuple[HostView, ...] | None = None
        self.held_back: dict[JobId, str] = {}
        """Jobs that a rule left out of the last view, and the reasons."""

    def touch(self, data: AnyEventData) -> None:
        """Mark what an event changed to be drawn again."""
        if isinstance(data, _MOVES_SLOTS):
            self._hosts = None
        if isinstance(data, HostsChanged | DrainsChanged):  # whose slots are drained now?
            self._jobs.clear()
            self._stale = None
        job: JobId | None = getattr(data, "job", None)
        if job is not None and self._stale is not None:
            self._stale.add(job)

    def view(self, state: State, now: float, rules: Rules, weights: dict[str, float], quotas: dict[str, int]) -> View:
        """Return all that a policy may know, without queued jobs that plans have no effect on (`State.ignored`)."""
        now = max(state.at, now)  # in this order, NaN loses
        if self._hosts is None:
            self._hosts = tuple(_host_views(state))
        self._draw(state, now)
        jobs = [self._jobs[job] for job in state.jobs]
        absent = {user for user, connected in state.agents.items() if not connected}
        if absent:
            jobs = [job for job in jobs if job.phase != "queued" or job.owner not in absent]
        if state.in_sessions:  # a session runs one cell at a time
            behind = {job for job in state.in_sessions if state.before(state.jobs[job]) is not None}
            jobs = [job for job in jobs if job.phase != "queued" or job.job not in behind]
        kept, hidden = reserved(state, rules), dict[JobId, str]()
        if kept.jobs:
            jobs = [_seated(state, job) if job.job in kept.jobs else job for job in jobs]
        for rule in rules:
            jobs, reasons = rule.shows(state, jobs)
            hidden |= reasons
        self.held_back = hidden
        if kept.jobs:
            jobs = [job for job in jobs if job.job not in kept.jobs]
        return View(
            now=now,
            seed=self._seed,
            hosts=_without(self._hosts, kept.slots),
            jobs=tuple(spared(jobs, now)),
            memo=state.memos.get(state.policy),
            server_slots=state.server_capacity,
            weights=weights,
            quotas=quotas,
            used=_used(state, now),
            turns={name: row.turns(now) for name, row in state.rows.items()},
            lengths=state.lengths,
        )

    def _draw(self, state: State, now: float) -> None:
        """Update the drafts that an event touched, and the values that grow with time."""
        # With how many workers a session's next cells start is decided by the end of another one.
        for job_id in state.jobs if self._stale is None else self._stale | state.in_sessions:
            job = state.jobs.get(job_id)
            if job is None:
                self._jobs.pop(job_id, None)
            else:
                self._jobs[job_id] = job_view(job)
        self._stale = set()
        for job in state.active_jobs():
            if job.slots:
                passed = max(now - job.accounted_at, 0.0)
                draft = self._jobs[job.job]
                profile = draft.profile
                if job.rigid and job.changed_at is not None:  # whoever takes its slots takes what it has done
                    lost = max(now - job.changed_at, 0.0)
                    profile = replace(profile, rescale_cost_s=job.learned.rescale_cost_s + lost)
                self._jobs[job.job] = replace(
                    draft,
                    attained_s=job.attained_s + passed * state.charged(job.slots),
                    run_s=job.run_s + passed,
                    profile=profile,
                )


def job_view(job: Job) -> JobView:
    """Return a job as policies see it, its running times up to the last count."""
    spec = job.spec
    if job.rigid:
        size = job.size
        spec = replace(
            spec,
            min_slots=size.workers,
            max_slots=size.workers,
            sizes=(),
            min_servers=size.servers,
            max_servers=size.servers,
        )
    elif job.stays:
        spec = replace(spec, max_slots=max(spec.min_slots, job.size.workers))
    elif job.phase == "queued" and spec.begins:
        spec = replace(spec, min_slots=spec.begins, max_slots=spec.begins, sizes=())
    return JobView(
        job=job.job,
        owner=job.owner,
        group=spec.group,
        name=spec.name,
        phase=job.phase,
        submitted_at=job.submitted_at,
        queued_at=job.queued_at,
        started_at=job.started_at,
        changed_at=job.changed_at,
        size=job.size,
        min_slots=spec.min_slots,
        max_slots=spec.max_slots,
        sizes=spec.sizes,
        min_servers=spec.min_servers,
        max_servers=spec.max_servers,
        priority=spec.priority,
        preemptible=job.preemptible and not job.leaving,
        deadline_at=spec.deadline_at,
        max_time_s=spec.max_time_s,
        estimate_s=spec.estimate_s,
        attained_s=job.attained_s,
        run_s=job.run_s,
        preemptions=job.preemptions,
        loses_all=job.plain,
        profile=job.learned.profile(job.progress),
    )


def _host_views(state: State) -> Iterable[HostView]:
    entries = iter(state.slots.values())  # in the order of the hosts
    for host in state.hosts:
        found = [entry for entry in islice(entries, len(host.slots)) if not entry.for_servers]
        yield HostView(
            name=host.name,
            capacity=sum(not entry.out and not entry.away for entry in found),
            free=sum(entry.free for entry in found),
            draining=sum(entry.draining for entry in found),
            until=host.until,
        )


def _used(state: State, now: float) -> dict[str, dict[str, float]]:
    """Return the decayed use of all users up to now, present slots included."""
    half_life_s = state.half_life_s
    found = {
        group: {user: used.now(now, half_life_s) for user, used in users.items()} for group, users in state.used.items()
    }
    for job in state.active_jobs():
        if job.slots:
            users = found.setdefault(job.spec.group, {})
            more = used_s(state.charged(job.slots), now - job.accounted_at, half_life_s)
            users[job.owner] = users.get(job.owner, 0.0) + more
    return found


def _seated(state: State, draft: JobView) -> JobView:
    """Return a waiting job as if it held its minimum."""
    workers = starts_with(state.jobs[draft.job].spec)
    return replace(draft, size=Size(workers=workers, servers=draft.min_servers), max_slots=workers)


def _without(hosts: tuple[HostView, ...], slots: int) -> tuple[HostView, ...]:
    """Return the hosts without `slots` slots, free slots removed first."""
    shown = list(hosts)
    for what in ("free", "draining"):
        for at, host in enumerate(shown):
            fewer = min(slots, getattr(host, what), host.capacity)
            if fewer:
                slots -= fewer
                shown[at] = replace(host, capacity=host.capacity - fewer, **{what: getattr(host, what) - fewer})
    return tuple(shown)


class Infos:
    """A cache of jobs as people see them: an unchanged job gives the same record again."""

    def __init__(self) -> None:
        self._drafts: dict[JobId, JobInfo] = {}

    def touch(self, data: AnyEventData) -> None:
        """Mark what an event changed to be drawn again."""
        job: JobId | None = getattr(data, "job", None)
        if job is not None:
            self._drafts.pop(job, None)
        elif isinstance(data, HostsChanged | DrainsChanged | BooksRestored):
            self._drafts.clear()

    def of(self, state: State, job: Job) -> JobInfo:
        """Return the record of this job."""
        reason = _reason(state, job)
        draft = self._drafts.get(job.job)
        if draft is None or draft.reason != reason:
            if len(self._drafts) >= INFOS:
                self._drafts.clear()
            draft = replace(convert(job, JobInfo, from_attributes=True), reason=reason, **_kept(job.retention))
            self._drafts[job.job] = draft
        return draft


def _kept(kept: Retention | None) -> dict[str, Any]:
    """Return the fields of a `JobInfo` for what the job's session keeps."""
    if kept is None:
        return {}
    if kept.exclusive:
        return {"pinned": kept.slots, "pinned_why": kept.reason, "pinned_until": kept.until}
    return {"held": kept.count, "held_until": kept.until}


def _reason(state: State, job: Job) -> str:
    """Return the job's reason; a queued job's comes from maintenance or the plan, which change without its events."""
    if job.phase != "queued":
        return job.reason
    return state.maintenance.text if state.maintenance is not None else state.reasons.get(job.job) or job.reason


def slot_infos(state: State) -> list[SlotInfo]:
    """Return every slot in the pool's order, then those of lost hosts that are still held."""
    present = [host.slot_id(slot.index) for host in state.hosts for slot in host.slots]
    owed = sorted(slot for slot, entry in state.slots.items() if entry.gone)
    return [_slot_info(state, slot, state.slots[slot]) for slot in (*present, *owed)]


def _slot_info(state: State, slot: SlotId, entry: SlotState) -> SlotInfo:
    kind: Literal["free", "leased", "draining", "out"] = "free"
    if entry.out:
        kind = "out"
    elif entry.job is not None or entry.retained_by is not None:
        kind = "draining" if entry.draining else "leased"
    elif entry.drained:
        kind = "out"
    holder = entry.retained_by if entry.job is None else entry.job
    job = None if holder is None else state.find(holder)
    kept = None if job is None else job.retention
    owner = "" if job is None else job.owner
    return SlotInfo(
        slot=slot,
        state=kind,
        job=holder,
        owner=owner,
        device=entry.device,
        reason=entry.out or also_used_by(entry.foreign),
        attempt=None if job is None else job.attempt,
        uid=state.ids.get(owner),
        foreign=entry.foreign,
        for_servers=entry.for_servers,
        drained="; ".join(drain.text for drain in state.drains if drain.covers(entry.host, slot)),
        pinned=pinned_by(job.spec.session, kept.reason) if job is not None and kept is not None else "",
    )
