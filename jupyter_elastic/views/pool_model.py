"""Folds pool events into the pool's screen, for the server extension, the widget and the terminal.

Pure: no clock, no socket. Starts from the daemon's answers (jobs and slots at a `seq`), folds the events after it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

import msgspec

from jupyter_elastic.client.human_times import not_known
from jupyter_elastic.client.job_model import fraction_done
from jupyter_elastic.types import (
    ACTIVE,
    ENDED,
    Event,
    HostInfo,
    JobId,
    JobInfo,
    SlotId,
    SlotInfo,
    events,
    other_machines,
)
from jupyter_elastic.types.texts import also_used_by, in_use_by, natural, pinned_by, visible
from jupyter_elastic.views.pool_history import PoolHistory, PoolNotes
from jupyter_elastic.views.pool_screen import (
    EndedRow,
    HistoryPoint,
    HostBox,
    JobRow,
    PoolScreen,
    PoolStatus,
    ShadowRow,
    ShareRow,
    SlotBox,
    SwitchRow,
)

MAX_ENDED = 10
"""Number of the user's ended jobs that are remembered."""


class PoolModel:
    """The state behind the pool's screen. `fold` each event once, in order; `screen` at any time."""

    def __init__(  # noqa: PLR0913
        self,
        *,
        seq: int = 0,
        jobs: Iterable[JobInfo] = (),
        slots: Iterable[SlotInfo] = (),
        others: Iterable[HostInfo] = (),
        policy: str = "",
        policy_options: dict[str, Any] | None = None,
        kind: str = "cpu",
        user: str = "",
        administers: bool = False,
        maintenance: str = "",
        problem: str = "",
    ) -> None:
        self.seq = seq
        self.jobs: dict[JobId, JobInfo] = {}
        self.queued = 0
        """Number of waiting jobs."""
        self.adopt(jobs)
        self.slots: dict[SlotId, SlotInfo] = {slot.slot: slot for slot in slots}
        self.others = {host.name: host for host in others}
        """Hosts other than the pool's own machine."""
        self.policy, self.policy_options = policy, policy_options or {}
        self.kind, self.user = kind, user
        self.administers = administers
        self.problem = problem
        """Reason why the journal can't be written, set by its caller; empty while it can."""
        self.maintenance = maintenance
        """Text on who put the pool into maintenance, and why; empty without maintenance."""
        self.forecasts: dict[JobId, tuple[float, float]] = {}
        """Wait ranges as absolute times, set by the what-if's caller."""
        self.shadows: list[ShadowRow] = []
        """Policies asked beside the active one, set by their caller."""
        self.history = PoolHistory()
        self.switches: deque[SwitchRow] = deque(maxlen=50)
        self.notes = PoolNotes()
        self.ended: deque[EndedRow] = deque(maxlen=MAX_ENDED)

    @property
    def hosts_known(self) -> bool:
        """True once the model has started from a daemon's answers."""
        return bool(self.slots)

    def adopt(self, jobs: Iterable[JobInfo]) -> None:
        """Add unfinished jobs that are not known yet, as they are at `seq`."""
        for info in jobs:
            if info.job not in self.jobs and info.phase not in ENDED:
                self._put(info)

    # --- fold -----------------------------------------------------------------------------------------------------

    def fold(self, event: Event) -> None:  # noqa: C901, PLR0912  a case for each event
        """Fold the next event; an event that was folded before changes nothing."""
        if event.seq <= self.seq:
            return
        self.seq = event.seq
        data = event.data
        match data:
            case events.JobSubmitted():
                self._put(
                    JobInfo(job=data.job, owner=data.owner, spec=data.spec, phase="queued", submitted_at=event.at)
                )
            case events.JobStarted() | events.RescaleRequested():
                self._lease(event.at, data)
            case events.JobRunning():
                self._change(data.job, phase="running", elastic=data.elastic)
            case events.StopRequested():
                self._drain(data.job, ())
                self._change(data.job, phase="stopping", slots=())
                self.notes.done(event.at, data.job, _stopped(data), data.reason)
            case events.SlotsReleased():
                self._release(data)
            case events.JobProgressed():
                self._change(data.job, progress=data.progress)
            case events.JobRequeued():
                self._change(data.job, phase="queued", slots=(), reason=data.reason or data.cause)
            case events.JobResized():
                info = self.jobs.get(data.job)
                if info is not None:
                    self._change(data.job, spec=data.applied(info.spec))
            case events.JobEnded():
                gone = self.jobs.pop(data.job, None)
                session = gone.spec.session if gone is not None else ""
                for slot in data.pinned:
                    self._set_slot(slot, state="leased", pinned=pinned_by(session, data.pinned_why))
                self.queued -= gone is not None and gone.phase == "queued"
                if gone is not None and gone.owner == self.user:
                    self._remember_end(event.at, gone, data.outcome)
                self.forecasts.pop(data.job, None)
            case events.HostsChanged():
                self._set_hosts(data)
            case events.DrainsChanged():
                self._set_drains(event.at, data)
            case events.PolicyUsed():
                self.policy, self.policy_options = data.name, data.options
                self.switches.appendleft(
                    SwitchRow(
                        at=event.at, by=event.by, name=data.name, previous=data.previous, reason=visible(data.reason)
                    )
                )
            case events.PlanRejected():
                self.notes.add(event.at, None, f"plan of {data.policy} not followed: {data.reason}")
            case events.PlanAccepted():
                for job, text in data.reasons.items():
                    self.notes.add(event.at, int(job), text)
        if not isinstance(data, events.JobProgressed):
            self._remember(event.at)

    def _remember_end(self, at: float, info: JobInfo, outcome: str) -> None:
        self.ended.append(
            EndedRow(job=info.job, name=info.spec.name, outcome=outcome, started_at=info.started_at, ended_at=at)
        )

    def _lease(self, at: float, data: events.JobStarted | events.RescaleRequested) -> None:
        info = self.jobs.get(data.job)
        if info is None:
            return
        before = len(info.slots)
        self._drain(data.job, data.slots)
        for slot in data.slots:
            self._set_slot(slot, state="leased", job=data.job, owner=info.owner)
        phase = "starting" if isinstance(data, events.JobStarted) else "rescaling"
        started = info.started_at if info.started_at is not None else at
        self._change(data.job, phase=phase, slots=data.slots, started_at=started, attempt=data.attempt)
        slots = f"{len(data.slots)} slot" + ("" if len(data.slots) == 1 else "s")
        change = f"{before} → {slots}" if before else f"started on {slots}"
        self.notes.done(at, data.job, f"{change}: {data.reason}" if data.reason else change, data.reason)

    def _drain(self, job: JobId, kept: tuple[SlotId, ...]) -> None:
        for slot in self.jobs[job].slots if job in self.jobs else ():
            if slot not in kept:
                self._set_slot(slot, state="draining")

    def _release(self, data: events.SlotsReleased) -> None:
        for slot in data.slots:
            box = self.slots.get(slot)
            if box is not None and box.job == data.job:
                reason = in_use_by(box.foreign) if box.foreign else box.reason
                state = "out" if reason or box.drained else "free"
                self._set_slot(slot, state=state, job=None, owner="", reason=reason, foreign=(), pinned="")
        info = self.jobs.get(data.job)
        if info is not None:
            self._change(data.job, slots=tuple(slot for slot in info.slots if slot not in data.slots))

    def _set_slot(self, slot: SlotId, **changes: Any) -> None:
        self.slots[slot] = msgspec.structs.replace(self.slots.get(slot) or SlotInfo(slot=slot, state="free"), **changes)

    def _set_hosts(self, data: events.HostsChanged) -> None:
        boxes: dict[SlotId, SlotInfo] = {}
        for host in data.hosts:
            self.kind = host.kind
            for slot in host.slots:
                name = host.slot_id(slot.index)
                old = self.slots.get(name)
                if old is None or old.job is None:
                    old = SlotInfo(slot=name, state="free", device=slot.device, drained=old.drained if old else "")
                reason = slot.out or also_used_by(slot.processes)
                changes = {"reason": reason, "foreign": slot.processes, "for_servers": slot.for_servers}
                boxes[name] = _in_or_out(msgspec.structs.replace(old, **changes))
        self.slots = boxes
        self.others = {host.name: host for host in other_machines(data.hosts, self.user)}

    def _set_drains(self, at: float, data: events.DrainsChanged) -> None:
        for name, slot in self.slots.items():
            covering = [one.text for one in data.drains if one.covers(name.rpartition(":")[0], name)]
            self.slots[name] = _in_or_out(msgspec.structs.replace(slot, drained="; ".join(covering)))
        self.maintenance = next((one.text for one in data.drains if not one.target), "")
        changed = next((one for one in data.drains if one.target == data.target), None)
        what = data.target or "the pool"
        self.notes.add(at, None, f"{what}: {changed.text}" if changed else f"{what} takes work again")

    def _change(self, job: JobId, **changes: Any) -> None:
        if job in self.jobs:
            self._put(msgspec.structs.replace(self.jobs[job], **changes))

    def _put(self, info: JobInfo) -> None:
        before = self.jobs.get(info.job)
        self.queued += (info.phase == "queued") - (before is not None and before.phase == "queued")
        self.jobs[info.job] = info

    def _remember(self, at: float) -> None:
        leased = Counter(slot.owner for slot in self._shared() if slot.state == "leased")
        states = Counter(slot.state for slot in self._shared())
        draining, capacity = states["draining"], states.total() - states["out"]
        self.history.add(
            HistoryPoint(at=at, leased=dict(leased), draining=draining, capacity=capacity, queued=self.queued)
        )

    # --- screen ---------------------------------------------------------------------------------------------------

    def screen(self, now: float, *, limit: int | None = None, offset: int = 0) -> PoolScreen:
        """Return the page at `now`; `limit` and `offset` choose a window of the job table."""
        rows = sorted(self.jobs.values(), key=lambda info: (info.phase not in ACTIVE, info.submitted_at, info.job))
        # The queue is ordered by likely start; jobs without a forecast follow in the order of their submit.
        queue = sorted(rows[len(rows) - self.queued :], key=lambda info: self.forecasts.get(info.job, _LATER)[0])
        places = {info.job: place for place, info in enumerate(queue, 1)}
        window = itertools.islice(rows, offset, None if limit is None else offset + limit)
        return PoolScreen(
            seq=self.seq,
            at=now,
            kind=self.kind,
            user=self.user,
            problem=_NO_JOBS.format(visible(self.problem)) if self.problem else "",
            maintenance=self.maintenance,
            policy=self.policy,
            policy_options=self.policy_options,
            hosts=self.hosts(),
            jobs=[self._row(info, places.get(info.job), now) for info in window],
            total_jobs=len(rows),
            shares=self._shares(now),
            history=list(self.history.points),
            switches=list(self.switches),
            notes=list(self.notes.rows),
            shadows=list(self.shadows),
        )

    def status(self) -> PoolStatus:
        """Return the few figures of a status bar."""
        states = Counter(slot.state for slot in self._shared())
        mine = [info.phase in ACTIVE for info in self.jobs.values() if info.owner == self.user]
        return PoolStatus(
            kind=self.kind,
            free=states["free"],
            capacity=states.total() - states["out"],
            running=sum(mine),
            waiting=len(mine) - sum(mine),
            ended=list(self.ended),
        )

    def _row(self, info: JobInfo, position: int | None, now: float) -> JobRow:
        waits = position is not None and not self.maintenance  # maintenance has no known end
        forecast = self.forecasts.get(info.job) if waits else None
        reason = "waits for the end of the maintenance" if position and self.maintenance else info.note
        if position and forecast and not math.isfinite(forecast[1]):
            forecast, reason = None, not_known(position - 1)
        return JobRow(
            job=info.job,
            name=info.spec.name,
            owner=info.owner,
            mine=self.administers or info.owner == self.user,
            phase=info.phase,
            position=position,
            held=sum(slot not in self.slots or not self.slots[slot].for_servers for slot in info.slots),
            min_slots=info.spec.min_slots,
            max_slots=info.spec.max_slots,
            submitted_at=info.submitted_at,
            started_at=info.started_at,
            fraction=fraction_done(info.progress),
            wait_s=(max(0.0, forecast[0] - now), max(0.0, forecast[1] - now)) if forecast else None,
            reason=reason,
        )

    def hosts(self) -> list[HostBox]:
        """Return the map's rows."""
        hosts: dict[str, list[SlotBox]] = {}
        for name, slot in sorted(self.slots.items(), key=lambda item: natural(item[0])):
            box = SlotBox(
                slot=name,
                state=slot.state,
                job=slot.job,
                owner=slot.owner,
                reason=slot.reason or slot.drained or slot.pinned,
                for_servers=slot.for_servers,
            )
            hosts.setdefault(name.rpartition(":")[0], []).append(box)
        return [_host(name, slots, self.others.get(name)) for name, slots in hosts.items()]

    def _shares(self, now: float) -> list[ShareRow]:
        held = Counter(slot.owner for slot in self._shared() if slot.state == "leased")
        queued = Counter(info.owner for info in self.jobs.values() if info.phase == "queued")
        wants = sorted({info.owner for info in self.jobs.values()} | set(held))
        capacity = sum(slot.state != "out" for slot in self._shared())
        used = self.history.slot_seconds(now)
        return [
            ShareRow(
                user=user,
                held=held[user],
                entitled=capacity / len(wants),
                queued=queued[user],
                slot_seconds=used[user],
            )
            for user in wants
        ]

    def _shared(self) -> Iterable[SlotInfo]:
        """Yield the slots that people share: those for servers alone are counted for nobody."""
        return (slot for slot in self.slots.values() if not slot.for_servers)


_NO_JOBS = "The pool takes no jobs and no changes now: {}. Running jobs go on."
_LATER = (math.inf, math.inf)
_ENDS = {"cancel": "cancelled", "preempt": "paused", "time limit": "stopped at its time limit"}


def _host(name: str, slots: list[SlotBox], other: HostInfo | None) -> HostBox:
    reasons = [slot.reason for slot in slots if slot.state == "out"]
    if other and other.unreachable:
        reasons.append(f"you can't reach it: {other.unreachable}")
    return HostBox(
        name=name,
        slots=slots,
        url=other.url if other else "",
        until=other.until if other else None,
        out="; ".join(dict.fromkeys(reasons)),
    )


def _stopped(data: events.StopRequested) -> str:
    what = _ENDS[data.how]
    if data.reason.startswith(what):
        return data.reason
    return f"{what}: {data.reason}" if data.reason else what


def _in_or_out(slot: SlotInfo) -> SlotInfo:
    """Return an unleased slot with the state `out` or `free`; a leased slot unchanged."""
    if slot.job is not None:
        return slot
    return msgspec.structs.replace(slot, state="out" if slot.reason or slot.drained else "free")
