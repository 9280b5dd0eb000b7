"""Finish-time fairness: no job is to end later than on a fixed share of the pool.

Source: Mahajan et al., "Themis" (NSDI 2020), and Zheng et al., "Shockwave" (NSDI 2023). A job's rho is its turnaround
over the time that it would take alone on 1/N of the pool, N being the mean number of unfinished jobs over the job's
*whole* life. So the policy remembers how many there were, and assumes that their number falls evenly from now on until
all present work is done.
Jobs get their minimums by tiers: those that have just started; those that would be behind (rho above `limit`) if put
off for a while; those critical for makespan, which take as long on all the slots that they can use as all present work
takes on the whole pool, the longest first; the others. Within a tier the largest rho goes first. Waiting raises rho, so
no job starves. Free slots go where they take most off a job's time, in parts of its fair time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from operator import attrgetter
from statistics import fmean
from typing import Annotated, Any, TypeAlias

import numpy as np
from msgspec import Meta

from jupyter_elastic.scheduler.policies.common import Draft, most
from jupyter_elastic.scheduler.policies.crowd import Crowd
from jupyter_elastic.scheduler.policies.elastic import Elastic, ElasticOptions, Guard, Value, climb, seated, settle
from jupyter_elastic.scheduler.policies.speed import UNKNOWN_S, guess, measured, rates, work_done, work_left
from jupyter_elastic.types import JobView, Plan, View

STAY = 10.0
"""Lead of running jobs in multiples of the cost of a start, and time after a change for which they are left alone."""

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


class FinishTimeFair(Elastic):
    """Jobs that would be behind go first."""

    name = "finish_time_fair"
    summary = "Whoever would end later than on a fixed share of the pool goes first (Themis, Shockwave)."

    class Options(ElasticOptions, frozen=True):
        limit: Annotated[
            float, Meta(ge=1, le=1e6, description="rho up to which makespan goes first; higher: shorter makespan")
        ] = 1.05
        ahead: Annotated[
            float, Meta(ge=0, le=100, description="jobs are judged as if put off by this part of the median length")
        ] = 0.1

    options: Options

    def plan(self, view: View) -> Plan:
        """Plan minimums by tiers and growth, apply the guard, and grow again with the slots that it frees."""
        draft = Draft(view)
        draft.pin()
        crowd = Crowd.of(view)
        if draft.running or draft.waiting:
            outlook = FinishTimes(draft, crowd)
            jobs = seated(draft, outlook.ordered(self.options.limit, self.options.ahead))
            if draft.free:
                outlook.grow(jobs)
            settle(draft, Guard(self.options, view.now), outlook.grow)
        return draft.plan(memo=crowd.memo())


class FinishTimes:
    """Expected ends of the draft's jobs; an array holds one number for each of them, the running ones first."""

    def __init__(self, draft: Draft, crowd: Crowd) -> None:
        self.draft = draft
        self.jobs = draft.running + draft.waiting
        self.capacity = max(1, draft.capacity)
        self.number = max(1, len(draft.view.jobs))
        begun = bool(draft.running)
        self.lengths = lengths = draft.view.lengths

        def resumed(job: JobView) -> float:
            nonlocal begun
            begun = True
            return self.left(job)

        works = [self.left(job) for job in draft.running]
        works += [
            # the usual case, spelled out: never started, nothing measured
            (
                (estimate or 1.0)
                if (estimate := job.estimate_s) is not None
                else UNKNOWN_S
                if (limit := job.max_time_s) is None
                else limit / 2
            )
            * job.min_slots
            if not job.attained_s
            and job.profile.remaining is None
            and (job.owner not in lengths or job.estimate_s is not None or job.max_time_s is not None)
            else resumed(job)
            for job in draft.waiting
        ]
        self.work = np.array(works)
        """Slot-seconds left at the minimum size."""
        self.least = self._each("min_slots")
        submitted = self._each("submitted_at")
        self.lived = np.maximum(draft.view.now - submitted, 0.0)
        area = np.interp(submitted, [*crowd.times, crowd.now], [*crowd.areas, crowd.area])
        self.passed = np.maximum(crowd.area - area, 0.0)
        """Integral of the number of jobs over the job's life so far."""
        self.total = self.work.copy()
        """Slot-seconds of the whole job at the minimum size."""
        if begun:
            done = np.flatnonzero(self._each("attained_s")).tolist()
            self.total[done] += [_work_done(self.jobs[at]) for at in done]
        self.drain = max(1.0, float(self.work.sum()) / self.capacity)
        """Seconds until the pool has done all the work."""

    def ordered(self, limit: float, ahead: float) -> Iterator[JobView]:
        """Yield the jobs by tier and rho; lazily, as mostly the first tiers fill the pool."""
        draft, running = self.draft, len(self.draft.running)
        costs = [max(job.profile.rescale_cost_s, job.profile.start_cost_s) for job in draft.running]
        bonus = np.full(len(self.jobs), fmean(costs) if costs else 0.0)
        bonus[:running] = STAY * np.array(costs)
        left = self._alone(self.work, np.maximum(self.capacity / self.number, self.least)) + bonus
        rho = self.rho(left + ahead * float(np.median(self.total / self.least)))
        keys = -rho
        for at, (job, cost) in enumerate(zip(draft.running, costs, strict=True)):
            if job.phase != "running" or job.changed_at is None or draft.view.now - job.changed_at < STAY * cost:
                keys[at] = -np.inf
        priority = self._each("priority") if draft.ranked else np.zeros(len(self.jobs))
        for level in np.unique(priority)[::-1] if draft.ranked else (0.0,):
            equals = priority == level
            first = equals & (keys <= -limit)
            yield from self._sorted(keys, first)
            critical = equals & ~first & (left >= self.drain)
            seconds = np.zeros(len(self.jobs))
            for at in map(int, np.flatnonzero(critical)):
                seconds[at] = _alone(self.jobs[at], self.capacity, float(self.work[at])) + bonus[at]
            critical &= seconds >= self.drain
            yield from self._sorted(-seconds, critical)
            yield from self._sorted(keys, equals & ~first & ~critical)

    def _sorted(self, keys: Array, chosen: Mask) -> Iterator[JobView]:
        """Yield the chosen jobs by their keys, then in their order."""
        found = np.flatnonzero(chosen)
        return (self.jobs[at] for at in found[np.argsort(keys[found], kind="stable")].tolist())

    def _each(self, name: str) -> Array:
        """Return an attribute of every job as an array."""
        found: Array = np.fromiter(map(attrgetter(name), self.jobs), float, len(self.jobs))
        return found

    def rho(self, left: Array) -> Array:
        """Return the rho of each job if it ends in `left` seconds."""
        life = np.maximum(self.lived + left, 1.0)
        falling = np.minimum(left, self.drain)
        coming = self.number * falling - (self.number - 1) * falling * falling / (2.0 * self.drain) + left - falling
        others = np.maximum((self.passed + coming) / life, 1.0)
        found: Array = life / np.maximum(self._alone(self.total, self.capacity / others), 1.0)
        return found

    def _alone(self, work: Array, share: Array) -> Array:
        """Return the seconds that `work` takes alone on a share of the pool, time-sliced below the minimum."""
        seconds: Array = work / np.minimum(share, self.least)
        for at in map(int, np.flatnonzero(share > self.least)):
            if self.jobs[at].max_slots > self.jobs[at].min_slots:
                seconds[at] = _alone(self.jobs[at], float(share[at]), float(work[at]))
        return seconds

    def left(self, job: JobView) -> float:
        """Return the slot-seconds at the minimum size that a job still needs and has time for.

        From its reports, else its owner's estimate, else half of its time limit, else its kin's lengths.
        """
        room = inf if job.max_time_s is None else max(1.0, job.max_time_s - job.run_s) * job.min_slots
        if not measured(job) and job.estimate_s is None:
            if room < inf:
                return room / 2
            if kin := self.lengths.get(job.owner, {}).get(job.name):
                return _more(kin, job) * job.min_slots
        return min(work_left(job), room)

    def grow(self, jobs: Sequence[JobView]) -> None:
        """Give these jobs the free slots where they take most off their times, in parts of their fair times."""
        share = self.capacity / self.number

        def worth(job: JobView) -> Value:
            speed, work = rates(job), self.left(job)
            fair = (work + _work_done(job)) / min(share, job.min_slots)
            weight = work / fair * max(speed(job.min_slots), 1e-300)
            return lambda workers: -weight / max(speed(workers), 1e-300)

        climb(self.draft, jobs, worth)


def _more(kin: tuple[float, ...], job: JobView) -> float:
    """Return the seconds at its minimum that a job still needs, by those of its kin that took longer than it has had.

    As much again as it has had if none did.
    """
    had = work_done(job) / guess(job.min_slots)
    longer = [seconds for seconds in kin if seconds > had]
    return max(1.0, fmean(longer) - had if longer else had)


def _work_done(job: JobView) -> float:
    """Return the slot-seconds at the minimum size that a job has done; not by `work_left`, which is never below 1."""
    profile = job.profile
    if profile.done is not None and (profile.speeds or profile.fit is not None):
        speed = rates(job)(job.min_slots)
        if speed > 0.0:
            return job.min_slots * profile.done / speed
    return job.attained_s


def _alone(job: JobView, share: float, work: float) -> float:
    """Return the seconds that `work` (slot-seconds at the minimum) takes alone on a share above the minimum."""
    speed = rates(job)
    workers = most(job, int(share)) or job.min_slots
    return work / job.min_slots * speed(job.min_slots) / max(speed(workers), 1e-300)
