"""Shared steps of the elastic policies: minimums, filling up, and the guard against restless resizing.

The guard counts in the job's *own measured* rescale cost (`profile.rescale_cost_s`): with Horovod's 0.2 s a job may
change every few seconds, with a 30 s restart only every few minutes. It never blocks slots that an admission needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta, Struct

from jupyter_elastic.scheduler.policies.common import Base, Configured, Draft, Ratio, above, most, seat, slots
from jupyter_elastic.scheduler.policies.speed import GUESS, UNKNOWN_S, measured, rates
from jupyter_elastic.types import JobId, JobView, Plan, View

Cooldown = Annotated[
    Ratio, Meta(description="a job rests after a change for this many times its measured rescale cost")
]
Payback = Annotated[Ratio, Meta(description="growing must save this many times the measured rescale cost of the job")]
Value: TypeAlias = Callable[[int], float]
"""Value of a job by its number of workers; higher is better."""


class ElasticOptions(Base, frozen=True):
    """Options of every elastic policy."""

    cooldown: Cooldown = 10.0
    payback: Payback = 2.0


class Elastic(Configured):
    """Base of policies that plan in these steps: minimums, growth, and of the changes only those that pay."""

    work_conserving: ClassVar[bool] = True
    options: ElasticOptions

    def plan(self, view: View) -> Plan:
        """Plan minimums and growth, apply the guard, and grow again with the slots that it frees."""
        draft = Draft(view)
        draft.pin()
        self._grow(draft, self._seat(draft))
        settle(draft, Guard(self.options, view.now), lambda jobs: self._grow(draft, jobs))
        return draft.plan()

    def _seat(self, draft: Draft) -> Sequence[JobView]:
        """Give minimums; return the jobs that have theirs, in the order in which they may grow."""
        raise NotImplementedError

    def _grow(self, draft: Draft, jobs: Sequence[JobView]) -> None:
        """Give these jobs the free slots."""
        raise NotImplementedError


class Guard(Struct):
    """Judge of rescaling a running job for its own good now."""

    options: ElasticOptions
    now: float

    def settled(self, job: JobView) -> bool:
        """True if the job runs and has rested since its last change."""
        if job.phase != "running":
            return False
        return job.changed_at is None or self.now - job.changed_at >= self.options.cooldown * job.profile.rescale_cost_s

    def may_grow(self, job: JobView, workers: int) -> bool:
        """True if growing to `workers` saves more of the job's remaining time than it costs."""
        if not self.settled(job):
            return False
        return self.saves(job, workers) > self.options.payback * job.profile.rescale_cost_s

    @staticmethod
    def saves(job: JobView, workers: int) -> float:
        """Return the seconds of the job's remaining time that the change saves."""
        speed = rates(job)
        before, after = speed(job.size.workers), speed(workers)
        if before <= 0 or after <= 0:
            return float("inf") if after > before else 0.0
        if measured(job):
            left = (job.profile.remaining or 0.0) / before
        elif job.estimate_s is not None:
            done = job.attained_s / max(1.0, float(job.min_slots))
            left = max(0.1 * job.estimate_s, job.estimate_s - done) * (job.min_slots / job.size.workers) ** GUESS
        else:
            left = max(UNKNOWN_S, job.run_s)
        return left * (1.0 - before / after)


def seated(draft: Draft, order: Iterator[JobView]) -> list[JobView]:
    """Give minimums in order; return the jobs that have theirs, in that order (pinned first if slots ran out)."""
    if not draft.workers:  # nobody was pinned
        seat(draft, order)
        return list(draft.jobs.values())
    walked: list[JobView] = []

    def walk() -> Iterator[JobView]:
        for job in order:
            walked.append(job)
            yield job

    seat(draft, walk())
    if not draft.free:
        return list(draft.jobs.values())
    return [job for job in walked if job.job in draft.workers]


def fill(draft: Draft, jobs: Iterable[JobView], may: Callable[[JobView, int, int], bool]) -> None:
    """Give one step each in turn while slots are free; a job that may not grow leaves the round (water-filling)."""
    ring = deque((job, draft.workers[job.job]) for job in jobs if job.job in draft.workers)
    while ring and draft.free:
        job, workers = ring.popleft()
        wider = above(job, workers)
        if wider and wider - workers <= draft.free and may(job, workers, wider) and draft.give(job, wider):
            ring.append((job, wider))


def step(job: JobView, value: Value, workers: int, room: int) -> tuple[float, int]:
    """Return (gain, workers) of the step with the best gain per slot within `room` slots; (0, 0) if none is positive.

    Tries one rung and then twice as far each time, to see across a dip (the first worker on a second host).
    """
    best, to = 0.0, 0
    worth = value(workers)
    reach = 1
    if not job.sizes:  # the usual case, spelled out: every size is allowed
        span = job.max_slots - workers
        while reach < span and reach <= room:
            gain = (value(workers + reach) - worth) / reach
            if gain > best:
                best, to = gain, workers + reach
            reach *= 2
        if 0 < span <= room and span <= reach:
            gain = (value(workers + span) - worth) / span
            if gain > best:
                best, to = gain, workers + span
        return best, to
    wider = above(job, workers)
    while wider and wider - workers <= room:
        gain = (value(wider) - worth) / (wider - workers)
        if gain > best:
            best, to = gain, wider
        reach *= 2
        jump = most(job, slots(job, workers + reach))
        wider = jump if jump > wider else above(job, wider)
    return best, to


def climb(draft: Draft, jobs: Iterable[JobView], worth: Callable[[JobView], Value], floor: float = 0.0) -> None:
    """Give free slots, step by step, where they are worth most per slot, while a step gains more than `floor`."""
    free = draft.free
    if not free:
        return
    heap: list[tuple[float, int, int, JobView, Value]] = []
    for at, job in enumerate(jobs):
        workers = draft.workers.get(job.job, 0)
        if workers and (job.max_slots > workers):
            value = worth(job)
            gain, to = step(job, value, workers, free)
            if gain > floor:
                heap.append((-gain, at, to, job, value))
    heapify(heap)
    while heap and draft.free:
        _, at, to, job, value = heap[0]
        workers = draft.workers[job.job]
        if to - workers <= draft.free:
            draft.give(job, to)
            workers = to
        gain, to = step(job, value, workers, draft.free)
        if gain > floor:
            heapreplace(heap, (-gain, at, to, job, value))
        else:
            heappop(heap)


def settle(draft: Draft, guard: Guard, again: Callable[[Sequence[JobView]], object]) -> None:
    """Apply the guard: running jobs shrink only for jobs that start, and grow only if it pays.

    Slots that the guard frees go first to running jobs that would shrink for nothing; then `again` fills once more with
    the jobs that may grow: starting jobs, and running ones that have rested and would gain.
    """
    growers: dict[JobId, int] = {}
    shrinkers = []
    for job in draft.running:
        held, given = job.size.workers, draft.workers.get(job.job, 0)
        if not given or not job.allows(held):
            continue
        if given > held:
            growers[job.job] = given
            draft.give(job, held)
        elif given < held:
            shrinkers.append(job)
    for job in shrinkers:
        if not draft.free:
            break
        given = draft.workers[job.job]
        back = most(job, slots(job, min(job.size.workers, given + draft.free)))
        if back > given:
            draft.give(job, back)
    for job in draft.running:
        wanted = growers.get(job.job, 0)
        if wanted and draft.free:
            wanted = most(job, slots(job, min(wanted, job.size.workers + draft.free)))
            if wanted > job.size.workers and guard.may_grow(job, wanted):
                draft.give(job, wanted)
    if draft.free:
        again(growing(draft, guard))


def growing(draft: Draft, guard: Guard) -> list[JobView]:
    """Return the jobs that may have more: starting ones, and running ones that have rested and don't shrink."""
    return [
        job
        for job in draft.jobs.values()
        if not job.size.workers or (draft.workers[job.job] >= job.size.workers and guard.settled(job))
    ]
