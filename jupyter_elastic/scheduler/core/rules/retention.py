"""Retain slots for a session after a cell, so that its next cell starts at once.

Slots that are not exclusive are free in every other respect: a waiting job gets them at once, only running jobs can't
grow into them, for they would shrink again soon. They are kept by number: in a pool of several hosts the slots left may
be another host's. Exclusive slots are kept because the memory of the session's workers can't leave the devices
(`ExitReported.pinned`). The core starts the session's next cell on exactly these, without a plan. They come free when
the session's agent reports that the workers are gone, at the latest when the session's own limit is over; sooner if the
ended cell is cancelled, or one of the slots is drained or lost.
Knows the state alone; the end of a retention is an event, so that a replay sees the same.
"""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from jupyter_elastic.scheduler.core.rule import Reserved, Rule, Rules
from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import (
    AnyEventData,
    ExitReported,
    HoldEnded,
    JobEnded,
    JobRequeued,
    JobStarted,
    ReleaseReported,
    Retention,
    SlotsReleased,
    Stimulus,
    UnpinRequested,
)
from jupyter_elastic.types.texts import count, span


class Retentions(Rule):
    """Keep the slots of sessions, and end that when its time or its reason is over."""

    def after(self, state: State, stimulus: Stimulus, rules: Rules) -> list[AnyEventData]:
        """Return the ends of what is over, and the starts of cells on the slots that their sessions have retained."""
        return _over(state, stimulus.at) + _starts_and_ends(state) if state.retaining else []

    def reserves(self, state: State) -> Reserved:
        """Return the number of free slots that sessions keep."""
        kept = sum(one.count for _, one in _all(state, exclusive=False))
        return Reserved(min(kept, sum(1 for _ in state.free())) if kept else 0)

    def explain(self, state: State, job: Job, now: float, *, whole: bool) -> list[str]:
        """Describe what the session of an ended job retains, or to a waiting job what all sessions do."""
        found = [(one, kept) for one, kept in _all(state, exclusive=True) if job.phase == "queued" or one is job]
        if job.phase == "queued" or not whole:
            return [
                f"{count(kept.count)} kept by the session of job {one.job} of {one.owner}, "
                f"for {span(kept.until - now)} at most."
                for one, kept in found
            ]
        return [
            f"Its session keeps {', '.join(kept.slots)} for {span(kept.until - now)} more at most, "
            f"unless its next cell comes{f': {kept.reason}' if kept.reason else ''}."
            for _, kept in found
        ]

    def wakes_at(self, state: State) -> float:
        """Return the time at which the next slots that are not exclusive are given back."""
        return min((kept.until for _, kept in _all(state, exclusive=False)), default=inf)


def _all(state: State, *, exclusive: bool) -> list[tuple[Job, Retention]]:
    return [(job, job.retention) for job in state.retained(exclusive=exclusive) if job.retention is not None]


def kept(job: Job, end: AnyEventData, report: ExitReported, why: str) -> AnyEventData:
    """Return the end of a job with the slots that its session retains; `why` comes from the report.

    A session holds the slots that the cell ran on, unless that was cancelled.
    """
    leased = {*job.slots, *job.draining}
    pinned = tuple(slot for slot in dict.fromkeys(report.pinned) if slot in leased)
    if pinned and job.spec.session:
        if isinstance(end, JobRequeued):  # another attempt would be refused, and could be given other slots
            text = f"{end.reason or end.cause}; a session's cell is not run twice: run it again"
            end = JobEnded(job=job.job, outcome="failed", reason=text)
        assert isinstance(end, JobEnded)
        return replace(end, pinned=pinned, pinned_why=why, pinned_s=max(report.pinned_s, 0.0))
    if isinstance(end, JobEnded) and end.outcome != "cancelled" and job.spec.session and job.spec.hold_s:
        return replace(end, held=len(job.members))
    return end


def _over(state: State, at: float) -> list[AnyEventData]:
    """Return the ends of holds that are due: all if a job that plans can serve waits, else those whose time is over."""
    held = _all(state, exclusive=False)
    if not held:
        return []
    waits = next((job for job in state.jobs.values() if job.phase == "queued" and not state.ignored(job)), None)
    why = "" if waits is None else f"job {waits.job} waits for slots"
    return [HoldEnded(job=job.job, reason=why) for job, kept in held if why or at >= kept.until]


def _starts_and_ends(state: State) -> list[AnyEventData]:
    """Start cells on the slots that their sessions keep, and end sessions of which such a slot is drained or lost."""
    events: list[AnyEventData] = []
    for job, kept in _all(state, exclusive=True):
        if job.withdrawn:
            continue
        if why := _unusable(state, kept):
            events.append(unpin(job, why))
        elif (cell := _next_cell(state, job)) is not None and cell.largest(kept.count) == kept.count:
            events += [
                SlotsReleased(job=job.job, attempt=job.attempt, slots=kept.slots),
                JobStarted(
                    job=cell.job,
                    attempt=cell.attempt + 1,
                    generation=1,
                    slots=kept.slots,
                    reason="its session had kept these slots",
                ),
            ]
    return events


def unpin(job: Job, reason: str) -> UnpinRequested:
    """Return the event that asks the session of an ended job to end and to give up its retained slots."""
    return UnpinRequested(job=job.job, attempt=job.attempt, reason=reason)


def released(state: State, report: ReleaseReported) -> list[AnyEventData]:
    """Free retained slots after the report that a session's workers are gone."""
    job = state.ended.get(report.job)
    if job is None or job.retention is None or job.attempt != report.attempt:
        return []
    freed = tuple(slot for slot in job.retention.slots if slot in report.slots)
    return [SlotsReleased(job=job.job, attempt=job.attempt, slots=freed)] if freed else []


def _unusable(state: State, kept: Retention) -> str:
    """Name a slot that the session keeps and nobody may use any more; empty if there is none."""
    found = (slot for slot in kept.slots if not state.slots[slot].leasable)
    return next((f"slot {slot} is {'out' if state.slots[slot].out else 'drained'}" for slot in found), "")


def _next_cell(state: State, job: Job) -> Job | None:
    """Return the first unfinished job of this session if it is queued."""
    first = next((state.jobs[number] for number in sorted(state.in_sessions) if state.same_session(number, job)), None)
    return first if first is not None and first.phase == "queued" and not state.ignored(first) else None
