"""Folds events into the slots that jobs held over time, and makes the timeline's screen of them.

Pure: no clock, no socket. Starts with the events that `ReadPast` answers, goes on with the live ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_elastic.client.human_times import not_known
from jupyter_elastic.scheduler.forecast.outlook import Outlook
from jupyter_elastic.types import Event, JobId, SharesChanged, SlotId, events
from jupyter_elastic.types.texts import visible
from jupyter_elastic.views.pool_model import PoolModel
from jupyter_elastic.views.pool_screen import SwitchRow
from jupyter_elastic.views.timeline_bars import BarSpan, JobPast, Rows, future_bars, past_bars
from jupyter_elastic.views.timeline_fairness import fairness
from jupyter_elastic.views.timeline_screen import FinishedRow, TimelineJob, TimelineLook, TimelineScreen

MAX_JOBS = 10_000
"""Maximum number of ended jobs; the oldest are forgotten first."""
MAX_DRAWN = 1_000
"""Maximum number of described jobs on a screen; more are drawn without a name."""


class TimelineModel:
    """The state behind the timeline. `fold` each event once, in order; `screen` at any time."""

    def __init__(self, since: float) -> None:
        self.since = since
        """Start of the known past."""
        self.seq = 0
        self.loaded = False
        """True once all of the past was folded."""
        self.version = 0
        """Number of changes to the picture so far."""
        self.jobs: dict[JobId, JobPast] = {}
        self.switches: list[SwitchRow] = []
        self.capacities: list[tuple[float, int]] = []
        """Time, and number of shared slots from then on."""
        self.shares = SharesChanged()
        self._servers: frozenset[SlotId] = frozenset()
        self._ended: list[JobId] = []

    def fold(self, event: Event) -> None:
        """Fold the next event; an event that was folded before changes nothing."""
        if event.seq <= self.seq:
            return
        self.seq, data = event.seq, event.data
        if isinstance(data, events.JobProgressed):
            return
        self.version += 1
        match data:
            case events.JobSubmitted():
                self.jobs[data.job] = JobPast(
                    data.job, data.owner, data.spec.group, data.spec.name, submitted_at=event.at
                )
            case events.HostsChanged():
                slots = [(host.slot_id(slot.index), slot) for host in data.hosts for slot in host.slots]
                self._servers = frozenset(name for name, slot in slots if slot.for_servers)
                there = sum(not slot.out for name, slot in slots if name not in self._servers)
                self.capacities.append((event.at, there))
            case events.PolicyUsed():
                self.switches.append(
                    SwitchRow(
                        at=event.at, by=event.by, name=data.name, previous=data.previous, reason=visible(data.reason)
                    )
                )
            case events.SharesChanged():
                self.shares = data
            case _ if (job := self.jobs.get(getattr(data, "job", 0))) is not None:
                self._fold_job(job, event)

    def _fold_job(self, job: JobPast, event: Event) -> None:
        data, at = event.data, event.at
        match data:
            case events.JobStarted():
                job.started_at = at if job.started_at is None else job.started_at
                job.state = "starting"
                job.hold(at, job.held | set(data.slots))
            case events.RescaleRequested():
                job.state = "rescaling"
                job.hold(at, job.held | set(data.slots))
            case events.JobRunning():
                job.state = "running"
            case events.StopRequested():
                job.state = "stopping"
            case events.SlotsReleased():
                job.hold(at, job.held - set(data.slots))
            case events.JobRequeued():
                job.state = "queued"
                job.hold(at, frozenset())
            case events.JobEnded():
                job.hold(at, frozenset(data.pinned))
                job.state, job.reason, job.ended_at = data.outcome, visible(data.reason), at
                self._ended.append(job.job)
                if len(self._ended) > MAX_JOBS:
                    self.jobs.pop(self._ended.pop(0), None)

    # --- screen ---------------------------------------------------------------------------------------------------

    def screen(
        self, pool: PoolModel, look: TimelineLook, now: float, *, outlook: Outlook, made_at: float | None
    ) -> TimelineScreen:
        """Return the screen at `now` for this view; `outlook` was made at `made_at`."""
        at = now if look.at is None else look.at
        begin, end = at - look.past_s, at + look.ahead_s
        jobs = [job for job in self.jobs.values() if _there(job, begin, min(end, now))]
        drawn = (span.slots for job in jobs for span in job.all_spans() if _in(span, begin, end))
        rows = Rows(pool.slots, drawn, pool.hosts())
        spans = {job.job: [span for span in job.all_spans() if _in(span, begin, end)] for job in jobs}
        ahead = end > now and made_at is not None
        held = {job: info.slots for job, info in pool.jobs.items() if info.slots}
        future = future_bars(rows, outlook, held, made_at or now, end) if ahead else []
        finished = self._finished(pool, look, begin, min(end, now))
        return TimelineScreen(
            at=now,
            begin=begin,
            end=end,
            policy=pool.policy,
            kind=pool.kind,
            hosts=rows.hosts(),
            jobs=_described(jobs, pool, outlook if ahead else Outlook(), made_at or now)[:MAX_DRAWN],
            bars=past_bars(rows, spans, begin, end),
            future=future,
            predicted_at=made_at if ahead else None,
            note=outlook.note if end > now else "",
            switches=[switch for switch in self.switches if begin <= switch.at <= end],
            fairness=fairness(jobs, self._capacities(pool), self.shares, self._servers, begin, min(end, now)),
            finished=finished[look.offset : look.offset + look.limit],
            total_finished=len(finished),
            users=sorted({job.owner for job in jobs}),
            loaded=self.loaded,
        )

    def _capacities(self, pool: PoolModel) -> list[tuple[float, int]]:
        if self.capacities:
            return self.capacities
        return [(0.0, sum(slot.state != "out" for slot in pool.slots.values() if not slot.for_servers))]

    def _finished(self, pool: PoolModel, look: TimelineLook, begin: float, end: float) -> list[FinishedRow]:
        """Return the finished jobs of the window that match the filters, the newest first."""
        name = look.name.casefold()
        return [
            FinishedRow(
                job=job.job,
                name=job.name,
                owner=job.owner,
                mine=pool.administers or job.owner == pool.user,
                outcome=job.state,
                reason=job.reason,
                submitted_at=job.submitted_at,
                started_at=job.started_at,
                ended_at=job.ended_at,
                most=job.most,
            )
            for job in sorted(self.jobs.values(), key=lambda job: (job.ended_at or 0.0, job.job), reverse=True)
            if job.ended_at is not None
            and begin <= job.ended_at <= end
            and look.user in {"", job.owner}
            and look.state in {"", job.state}
            and name in job.name.casefold()
        ]


def _there(job: JobPast, begin: float, end: float) -> bool:
    return job.submitted_at <= end and (job.ended_at is None or job.ended_at >= begin)


def _in(span: BarSpan, begin: float, end: float) -> bool:
    return span.begin <= end and (span.end is None or span.end >= begin)


def _described(jobs: Iterable[JobPast], pool: PoolModel, outlook: Outlook, made_at: float) -> list[TimelineJob]:
    """Return the jobs' descriptions: unfinished ones first, newest first."""
    likely = {job.job: job for job in outlook.jobs}
    found = []
    for job in sorted(jobs, key=lambda job: (job.ended_at is not None, -job.job)):
        one = likely.get(job.job)
        start, end = (one.start, one.end) if one is not None else (None, None)
        state = pool.jobs[job.job].phase if job.job in pool.jobs else job.state
        if start is not None and start.vague and not job.held:
            starts = (other.start.guess_s for other in outlook.jobs if other.start is not None)
            state = not_known(sum(guess < start.guess_s for guess in starts))
            end = None  # of what nobody knows the start
        start, end = (None if eta is None or eta.vague else eta for eta in (start, end))
        found.append(
            TimelineJob(
                job=job.job,
                name=job.name,
                owner=job.owner,
                mine=pool.administers or job.owner == pool.user,
                state=state,
                submitted_at=job.submitted_at,
                ended_at=job.ended_at,
                starts=(made_at + start.low_s, made_at + start.high_s) if start and not job.held else None,
                ends=(made_at + end.low_s, made_at + end.high_s) if end and job.ended_at is None else None,
            )
        )
    return found
