"""Retain slots for a session after a cell because its workers' memory can't leave the devices (`ExitReported.pinned`).

Nobody else can have these slots: the memory is there. The core starts the session's next cell on exactly these, without
a plan. The slots come free when the session's agent reports that the workers are gone, at the latest when the session's
own limit is over; sooner if the ended cell is cancelled, or one of the slots is drained or lost. Knows the state alone.
"""

from __future__ import annotations

from msgspec.structs import replace

from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import (
    AnyEventData,
    ExitReported,
    JobEnded,
    JobRequeued,
    JobStarted,
    ReleaseReported,
    SlotsReleased,
    UnpinRequested,
)


def after(job: Job, end: AnyEventData, report: ExitReported, reason: str) -> AnyEventData:
    """Return the end of a job with the slots that its session retains; `reason` comes from the report."""
    held = {*job.slots, *job.draining}
    pinned = tuple(slot for slot in dict.fromkeys(report.pinned) if slot in held)
    if not (pinned and job.spec.session):
        return end
    if isinstance(end, JobRequeued):  # another attempt would be refused, and could be given other slots
        text = f"{end.reason or end.cause}; a session's cell is not run twice: run it again"
        end = JobEnded(job=job.job, outcome="failed", reason=text)
    assert isinstance(end, JobEnded)
    return replace(end, pinned=pinned, pinned_why=reason, pinned_s=max(report.pinned_s, 0.0))


def starts(state: State) -> list[AnyEventData]:
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


def ends(state: State) -> list[AnyEventData]:
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
