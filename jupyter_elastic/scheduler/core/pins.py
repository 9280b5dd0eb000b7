"""Slots that a session keeps after a cell because its workers' memory can't leave the devices (`ExitReported.pinned`).

They are nobody else's: the memory is there. The session's next cell is started on exactly these, without a plan, for
nobody else could have them. They come free when the session's agent says that its workers are gone, at the latest when
the session's own limit is over; sooner when the ended cell is cancelled, or one of the slots is drained or lost. Knows
the state alone.
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
    """The end of a job whose session keeps slots. `reason`: that of the report's pins."""
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
    """The cells that begin now on the slots that their sessions have kept."""
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
    """The sessions that are to end now, because a slot that they keep is drained or lost."""
    jobs = (state.ended[number] for number in sorted(state.pinned))
    return [unpin(job, why) for job in jobs if not job.unpinning and (why := _withdrawn(state, job))]


def unpin(job: Job, reason: str) -> UnpinRequested:
    """The session of an ended job is to end, and with it what it keeps."""
    return UnpinRequested(job=job.job, attempt=job.attempt, reason=reason)


def released(state: State, report: ReleaseReported) -> list[AnyEventData]:
    """What comes free by the report that a session's workers are gone."""
    job = state.ended.get(report.job)
    if job is None or job.attempt != report.attempt:
        return []
    gone = set(report.slots)
    freed = tuple(slot for slot in job.pinned if slot in gone)
    return [SlotsReleased(job=job.job, attempt=job.attempt, slots=freed)] if freed else []


def _withdrawn(state: State, job: Job) -> str:
    """Which of the slots that its session keeps nobody may use any more; empty when there is none."""
    for slot in job.pinned:
        if not state.slots[slot].leasable:
            return f"slot {slot} is {'out' if state.slots[slot].out else 'drained'}"
    return ""


def _next_cell(state: State, job: Job) -> Job | None:
    """The job of this session that comes first, if it waits."""
    first = next((state.jobs[number] for number in sorted(state.in_sessions) if state.same_session(number, job)), None)
    return first if first is not None and first.phase == "queued" and not state.ignored(first) else None
