"""Retain slots for a session after a cell, so that its next cell starts at once.

Held slots are free in every other respect: a waiting job gets them at once, only running jobs can't grow into them, for
they would shrink again soon. They are kept by number: in a pool of several hosts the slots left may be another host's.
Pinned slots are kept because the memory of the session's workers can't leave the devices (`ExitReported.pinned`), so
nobody else can have them. The core starts the session's next cell on exactly these, without a plan. They come free
when the session's agent reports that the workers are gone, at the latest when the session's own limit is over; sooner
if the ended cell is cancelled, or one of the slots is drained or lost.
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
    SlotsReleased,
    Stimulus,
    UnpinRequested,
)
from jupyter_elastic.types.texts import count, span


class Retentions(Rule):
    """Keep the slots of sessions, and end that when its time or its reason is over."""

    def after(self, state: State, stimulus: Stimulus, rules: Rules) -> list[AnyEventData]:
        """Return the ends of what is over, and the starts of cells on the slots that their sessions have retained."""
        return [*_over(state, stimulus.at), *_ends(state), *_starts(state)]

    def reserves(self, state: State) -> Reserved:
        """Return the number of free slots that sessions keep."""
        kept = sum(state.ended[number].held for number in state.held)
        return Reserved(min(kept, sum(1 for _ in state.free())) if kept else 0)

    def explain(self, state: State, job: Job, now: float, *, whole: bool) -> list[str]:
        """Describe what the session of an ended job retains, or to a waiting job what all sessions do."""
        if job.pinned and whole:
            why = f": {job.pinned_why}" if job.pinned_why else ""
            left = _left(job, now)
            return [
                f"Its session keeps {', '.join(job.pinned)} for {left} more at most, unless its next cell comes{why}."
            ]
        shown = state.pinned if job.phase == "queued" else {job.job} & state.pinned
        return [
            f"{count(len(one.pinned))} kept by the session of job {one.job} of {one.owner}, "
            f"for {_left(one, now)} at most."
            for one in (state.ended[number] for number in sorted(shown))
        ]

    def wakes_at(self, state: State) -> float:
        """Return the time at which the next hold ends."""
        until = (state.ended[number].held_until for number in state.held)
        return min((at for at in until if at is not None), default=inf)


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
    if not state.held:
        return []
    waits = next((job for job in state.jobs.values() if job.phase == "queued" and not state.ignored(job)), None)
    why = "" if waits is None else f"job {waits.job} waits for slots"
    return [
        HoldEnded(job=number, reason=why)
        for number in sorted(state.held)
        if why or at >= (state.ended[number].held_until or 0.0)
    ]


def _left(job: Job, now: float) -> str:
    return span((job.pinned_until or now) - now)


def _starts(state: State) -> list[AnyEventData]:
    """Return the events that start cells on the slots that their sessions have retained."""
    events: list[AnyEventData] = []
    for number in sorted(state.pinned):
        job, following = state.ended[number], _next_cell(state, state.ended[number])
        if following is None or job.unpinning or _withdrawn(state, job):
            continue
        if following.largest(len(job.pinned)) == len(job.pinned):
            events += [
                SlotsReleased(job=number, attempt=job.attempt, slots=job.pinned),
                JobStarted(
                    job=following.job,
                    attempt=following.attempt + 1,
                    generation=1,
                    slots=job.pinned,
                    reason="its session had kept these slots",
                ),
            ]
    return events


def _ends(state: State) -> list[AnyEventData]:
    """Return the events that end sessions because a slot that they retain is drained or lost."""
    jobs = (state.ended[number] for number in sorted(state.pinned))
    return [unpin(job, why) for job in jobs if not job.unpinning and (why := _withdrawn(state, job))]


def unpin(job: Job, reason: str) -> UnpinRequested:
    """Return the event that asks the session of an ended job to end and to give up its retained slots."""
    return UnpinRequested(job=job.job, attempt=job.attempt, reason=reason)


def released(state: State, report: ReleaseReported) -> list[AnyEventData]:
    """Free retained slots after the report that a session's workers are gone."""
    job = state.ended.get(report.job)
    if job is None or job.attempt != report.attempt:
        return []
    gone = set(report.slots)
    freed = tuple(slot for slot in job.pinned if slot in gone)
    return [SlotsReleased(job=job.job, attempt=job.attempt, slots=freed)] if freed else []


def _withdrawn(state: State, job: Job) -> str:
    """Name a slot that the session retains and nobody may use any more; empty if there is none."""
    for slot in job.pinned:
        if not state.slots[slot].leasable:
            return f"slot {slot} is {'out' if state.slots[slot].out else 'drained'}"
    return ""


def _next_cell(state: State, job: Job) -> Job | None:
    """Return the first unfinished job of this session if it is queued."""
    first = next((state.jobs[number] for number in sorted(state.in_sessions) if state.same_session(number, job)), None)
    return first if first is not None and first.phase == "queued" and not state.ignored(first) else None
