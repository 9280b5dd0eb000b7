"""Order jobs so that some overtake: the shortest first, with waiting in a job's favour.

A queue may hold ten thousand jobs of which fifty can start. Each gets one number here, cheaply, and only as many as
could start are sorted; the others follow when a caller asks for more.
"""

from __future__ import annotations

from collections.abc import Iterator

from jupyter_elastic.scheduler.policies.common import Draft, sized
from jupyter_elastic.scheduler.policies.speed import UNKNOWN_S, work_left
from jupyter_elastic.types import JobView

SAMPLED = 16
"""Inverse of the sampled part of a long queue's numbers, from which the bound for jobs that could start is guessed."""


def shortest_first(draft: Draft, aging: float, stay: float, size: str = "min") -> Iterator[JobView]:
    """Yield jobs by expected remaining seconds minus credit for waiting; running jobs are `stay` rescale costs ahead.

    The seconds are those at the `min` or `max` of a job's range, whichever it is given. At a smaller size than it is
    given, a job of unknown length would grow by more than `stay` while it starts, and make room for the next before its
    first step. Waiting counts from the first submission, so that the order among waiting jobs never changes with the
    time alone, and a job that waited long keeps its position when it gets slots at last.
    """
    now = draft.view.now
    base = aging * now
    keys = [
        # the usual case, spelled out: never started, nothing measured
        (UNKNOWN_S if (estimate := job.estimate_s) is None else estimate) - base + aging * job.submitted_at
        if not job.attained_s and job.profile.remaining is None
        else _left(job, base, aging, size)
        for job in draft.waiting
    ]
    running = [_left(job, base, aging, size) - stay * job.profile.rescale_cost_s for job in draft.running]
    return ordered(draft, keys, running)


def _left(job: JobView, base: float, aging: float, size: str) -> float:
    workers = job.min_slots if size == "min" else sized(job, size) or job.min_slots
    return work_left(job) / workers - base + aging * (job.submitted_at + job.run_s)


def ordered(draft: Draft, waiting: list[float], running: list[float]) -> Iterator[JobView]:
    """Yield the draft's jobs by priority and number, lowest first: those that could start, then on demand the rest.

    `waiting` and `running` hold the numbers of `draft.waiting` and `draft.running`; running jobs win ties, then
    arrival.
    """
    jobs = draft.running + draft.waiting
    keys = running + waiting
    bound = float("inf")

    def lowest_first(places: list[int]) -> Iterator[JobView]:
        return (jobs[at] for at in sorted(places, key=keys.__getitem__))

    if draft.ranked:
        for rank in sorted({job.priority for job in jobs}, reverse=True):
            yield from lowest_first([at for at, job in enumerate(jobs) if job.priority == rank])
        return
    if len(waiting) > 2 * draft.capacity + 64:
        sample = sorted(waiting[::SAMPLED])
        bound = sample[min(draft.capacity // SAMPLED + SAMPLED, len(sample) - 1)]
    yield from lowest_first([at for at, key in enumerate(keys) if key <= bound])
    yield from lowest_first([at for at, key in enumerate(keys) if not key <= bound])
