"""Deadlines: a job is admitted only if all admitted deadlines still hold; admitted jobs get what they need.

Source: Gu et al., "ElasticFlow" (ASPLOS 2023). The minimum satisfactory share of a job is the lowest level of slots at
which it meets its deadline beside those with earlier deadlines; levels are filled into a timeline of free slots, by
earliest deadline. The rest goes to jobs without a (feasible) deadline, their minimum in order of arrival, and then step
by step to the job that saves the most time. Admissions are in the memo; a refused job runs as one without a deadline.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from jupyter_elastic.scheduler.policies.common import Configured, Draft, ladder, least, most, seat, slots
from jupyter_elastic.scheduler.policies.elastic import ElasticOptions, Guard, climb, growing, settle
from jupyter_elastic.scheduler.policies.optimus import seconds_saved
from jupyter_elastic.scheduler.policies.speed import guess, measured, rates, work_done
from jupyter_elastic.types import JobId, JobView, Plan, View

TRIES = 16
"""Maximum number of new jobs that one plan tries to admit; the others' turn comes with the next."""
LEVELS = 16
"""Number of sizes of a range beyond which only powers of two are tried."""


class DeadlineDemand(Struct):
    """Needs of a job with a deadline. Level 0 is to wait; `work` is in the unit of `rates`, times are in seconds."""

    job: JobView
    workers: Sequence[int]
    """Workers by level, ascending."""
    costs: Sequence[int]
    """Slots by level."""
    rates: Sequence[float]
    """Speed by level."""
    work: float
    until: float
    """Seconds until the deadline."""
    spare: float
    """Work by which the job is to be early."""
    level: int
    """Present level."""
    pause: float
    """Seconds that a start or a rescale costs; the deadline is to hold with all foreseen ones."""
    paused: float
    """Seconds left of the pause that is going on."""

    def least(self, work: float, until: float) -> int:
        """Return the first level at which the job alone could do the work in time; one too many if there is none."""
        return next((at for at, rate in enumerate(self.rates) if rate * until >= work), len(self.rates))

    def hopeless(self) -> bool:
        """True if the job can't be in time any more at any level."""
        return self.least(self.work, self.until) == len(self.costs)


class Timeline(Struct):
    """Free slots from now on, by stretch: the `ends` of each, and the slots that are `free` in it."""

    ends: list[float]
    free: list[int]

    def reserve(self, demand: DeadlineDemand, work: float, until: float) -> int | None:
        """Reserve the lowest level that does the work in time; return the workers *now*, or None if no level does."""
        for top in range(demand.least(work, until), len(demand.costs)):
            levels, end = self._walk(demand, top, work, until)
            if end <= until:
                self._take([demand.costs[level] for level in levels], end)
                return demand.workers[levels[0]]
        return None

    def _walk(self, demand: DeadlineDemand, top: int, work: float, until: float) -> tuple[list[int], float]:
        """Return the possible level, at most `top`, in each stretch, and the time when the work is done (or inf)."""
        costs, rates, pause = demand.costs, demand.rates, demand.pause
        cost = costs[top]
        levels: list[int] = []
        start, last, owed = 0.0, demand.level, demand.paused
        for limit, free in zip(self.ends, self.free, strict=True):
            level = top if cost <= free else bisect_right(costs, free, 0, top) - 1
            levels.append(level)
            if level != last:
                last, owed = level, pause if level else 0.0
            end = min(until, limit)
            lost = min(owed, end - start)
            owed -= lost
            done = rates[level] * (end - start - lost)
            if done >= work:
                return levels, start + lost + work / rates[level]
            work -= done
            start = end
            if end >= until:
                break
        return levels, float("inf")

    def _take(self, costs: list[int], end: float) -> None:
        """Reserve these costs in the first stretches, in the last one only until `end`."""
        last = len(costs) - 1
        if end < self.ends[last]:
            self.ends.insert(last, end)
            self.free.insert(last, self.free[last])
        for at, cost in enumerate(costs):
            self.free[at] -= cost


class Deadline(Configured):
    """Admitted deadlines hold."""

    name = "deadline"
    summary = "Jobs with deadlines get what they need to meet them, if all admitted ones still can."
    work_conserving = True
    interval_s = 10.0

    class Options(ElasticOptions, frozen=True):
        margin: Annotated[
            float, Meta(ge=0, le=1, description="share of its remaining time by which a job is to finish early")
        ] = 0.05

    options: Options

    def plan(self, view: View) -> Plan:
        """Plan shares for the admitted jobs, and the rest for the others."""
        draft = Draft(view)
        draft.pin()
        before = list(view.memo.get("admitted", ())) if isinstance(view.memo, dict) else []
        known = set(before)
        demands = [
            demand
            for job in view.jobs
            # one that is being preempted is stopping for a moment, and stays admitted
            if job.deadline_at is not None and (job.phase != "stopping" or job.job in known)
            if (demand := self._demand(job, view.now, job.job in known)) is not None
        ]
        pinned = sum(draft.cost(job) for job in draft.running if not job.preemptible and job.deadline_at is None)
        admitted, now = self._admit(view.capacity - pinned, demands, before)
        late = [one.job for number, one in admitted.items() if number not in now and one.job.phase != "stopping"]
        for number, workers in now.items():
            job = admitted[number].job
            if workers and job.phase != "stopping":
                draft.give(job, most(job, min(slots(job, workers), draft.free + draft.cost(job))))
        seat(draft, late)
        seat(draft, (demand.job for demand in admitted.values() if demand.job.size.workers))
        seat(draft, draft.by_priority([*draft.running, *draft.waiting]), strict=True)
        climb(draft, list(draft.jobs.values()), seconds_saved)
        self._settle(draft, view, now)
        for number in admitted:
            if number not in known:
                draft.reasons.setdefault(number, "admitted: its deadline can be met")
        return draft.plan(memo={"admitted": list(admitted)})

    def _demand(self, job: JobView, now: float, known: bool) -> DeadlineDemand | None:
        """Return the needs of a job; None if its length is unknown, or if it is too late already."""
        until = (job.deadline_at or 0.0) - now
        held, rungs, speed = job.size.workers, ladder(job), rates(job)
        levels = rungs if len(rungs) <= LEVELS else [n for n in _powers(rungs, held) if n in rungs]
        if measured(job):
            work = job.profile.remaining or 0.0
        elif job.estimate_s is not None:
            speed, work = guess, job.estimate_s * guess(job.min_slots)
            work = max(0.1 * work, work - work_done(job))
        else:
            return None
        pause = job.profile.rescale_cost_s
        going = job.phase != "running" and job.changed_at is not None
        workers = (0, *levels)
        demand = DeadlineDemand(
            job=job,
            workers=workers,
            costs=[slots(job, n) for n in workers],
            rates=[speed(n) for n in workers],
            work=max(work, 1e-9),
            until=max(until, 0.0),
            spare=self.options.margin * max(work, 1e-9),
            level=workers.index(held) if held in workers else -1,
            pause=pause,
            paused=max(0.0, pause - (now - (job.changed_at or now))) if going and held else 0.0,
        )
        hopeless = demand.least(demand.work + demand.spare, demand.until) == len(workers)
        return demand if known or not hopeless else None

    @staticmethod
    def _admit(
        capacity: int, demands: list[DeadlineDemand], before: list[JobId]
    ) -> tuple[dict[JobId, DeadlineDemand], dict[JobId, int]]:
        """Return the admitted jobs, in the order in which slots were reserved, and the workers of each now.

        The order is kept from plan to plan: deadlines that could be met in it before can be met in it now.
        """
        rank = {number: at for at, number in enumerate(before)}
        known = sorted((one for one in demands if one.job.job in rank), key=lambda one: rank[one.job.job])
        line, now, late = _schedule(capacity, known)
        if late:  # it went otherwise than foreseen; perhaps another order does better
            urgent = sorted(known, key=_urgency)
            other = _schedule(capacity, urgent)
            if other[2] < late:
                known, (line, now, late) = urgent, other
        admitted = {one.job.job: one for one in known}
        new = sorted((one for one in demands if one.job.job not in rank), key=lambda one: one.job.submitted_at)
        for demand in new[:TRIES]:
            behind = Timeline(line.ends[:], line.free[:])
            workers = behind.reserve(demand, demand.work + demand.spare, demand.until)
            if workers is not None:  # it fits behind all others, whatever its deadline
                line, admitted[demand.job.job], now[demand.job.job] = behind, demand, workers
            elif not late:
                everyone = sorted([*admitted.values(), demand], key=_urgency)
                other = _schedule(capacity, everyone, all_or_none=True)
                if not other[2]:
                    line, now, late = other
                    admitted = {one.job.job: one for one in everyone}
        return admitted, now

    def _settle(self, draft: Draft, view: View, now: dict[int, int]) -> None:
        """Apply the guard, but never below a deadline's needs."""
        guard = Guard(self.options, view.now)
        settle(draft, guard, lambda jobs: climb(draft, jobs, seconds_saved))
        for number, workers in now.items():
            job = draft.jobs.get(number)
            if job is None or draft.workers[number] >= workers:
                continue
            for other in reversed(list(draft.jobs.values())):
                short = workers - draft.workers[number] - draft.free
                if short <= 0:
                    break
                floor = max(now.get(other.job, 0), least(other))
                if draft.workers[other.job] > floor:
                    draft.give(other, max(most(other, max(slots(other, floor), draft.cost(other) - short)), floor))
            draft.give(job, most(job, min(slots(job, workers), draft.free + draft.cost(job))) or draft.workers[number])
        if draft.free:
            climb(draft, growing(draft, guard), seconds_saved)


def _urgency(demand: DeadlineDemand) -> tuple[float, float, JobId]:
    return demand.until, demand.job.submitted_at, demand.job.job


def _schedule(
    capacity: int, demands: Iterable[DeadlineDemand], *, all_or_none: bool = False
) -> tuple[Timeline, dict[JobId, int], int]:
    """Reserve the demands in a fresh timeline, in order; return it, the workers now and the number of needless misses.

    A job that can't be early is to be in time; one that can't be in time any more comes after all others, as fast as it
    can. With `all_or_none` the walk ends at the first job that can't be early, though it could alone be in time.
    """
    line, late = Timeline([float("inf")], [max(0, capacity)]), []
    now: dict[JobId, int] = {}
    for demand in demands:
        workers = line.reserve(demand, demand.work + demand.spare, demand.until)
        if workers is None and all_or_none and not demand.hopeless():
            return line, now, 1
        if workers is None:
            workers = line.reserve(demand, demand.work, demand.until)
        if workers is None:
            late.append(demand)
        else:
            now[demand.job.job] = workers
    for demand in late:
        fastest = max(demand.rates)
        soonest = demand.work / fastest + demand.pause if fastest > 0 else 0.0
        for factor in (1.0, 2.0, 4.0, 8.0):
            workers = line.reserve(demand, demand.work, factor * soonest)
            if workers is not None:
                now[demand.job.job] = workers
                break
    return line, now, sum(not one.hopeless() for one in late)


def _powers(rungs: Sequence[int], held: int) -> list[int]:
    """Return the ends of a range, the present size, and the powers of two between the ends."""
    powers = (1 << exponent for exponent in range(rungs[-1].bit_length()))
    return sorted({rungs[0], rungs[-1], held, *(n for n in powers if n >= rungs[0])})
