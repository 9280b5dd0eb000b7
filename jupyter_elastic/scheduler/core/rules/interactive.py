"""Make room for interactive jobs: people wait for them, so elastic jobs shrink at once, whatever the policy.

This happens before the policy is asked: neither an interactive job that waits for slots which others are giving back
nor these slots are in the view; once the job has them it is shown as a job that no plan may pause. No running job loses
all its slots for it, and nobody goes below a guaranteed quota. If that gives no room the job waits in the queue like
any other and gets the first slots that come free.
Knows the state and the administrator's limits; must not know policies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from msgspec.structs import replace

from jupyter_elastic.scheduler.core.plan import difference
from jupyter_elastic.scheduler.core.rule import Caps, Entity, Reserved, Rule, Rules, reserved, suitable_hosts
from jupyter_elastic.scheduler.core.state import Job, State, least_workers, limit_at
from jupyter_elastic.types import AnyEventData, JobId, Plan, RescaleRequested, Size, Stimulus
from jupyter_elastic.types.texts import count, span

_Sizes: TypeAlias = tuple[dict[JobId, Size], dict[JobId, str]]
"""Sizes of all running jobs and of those to start, and the reasons for the new ones."""
GIVEN_BACK = "the slots that it gave up for interactive jobs are idle again"


class Interactive(Rule):
    """Start interactive jobs at once, and reserve slots for those that wait for slots which others give back."""

    def after(self, state: State, stimulus: Stimulus, rules: Rules) -> list[AnyEventData]:
        """Return the starts and shrinks that interactive jobs need, or else the growth of jobs that gave up slots."""
        if jobs := waiting(state):
            sizes, reasons = _Room(state, self.caps, self.quotas).make(jobs)
        elif state.yielded:
            sizes, reasons = _given_back(state, self.caps, reserved(state, rules).slots)
        else:
            return []
        found = difference(state, Plan(sizes=sizes, reasons=reasons), suitable_hosts(state, rules)) if reasons else []
        for at, data in enumerate(found):
            if isinstance(data, RescaleRequested):
                gone = state.jobs[data.job].size.workers - (len(data.slots) - data.servers)
                found[at] = replace(data, yielded=state.yielded.get(data.job, 0) + gone)
        return found

    def reserves(self, state: State) -> Reserved:
        """Return the slots, free or being given back, that are reserved for waiting interactive jobs."""
        if not (found := waiting(state)):
            return Reserved()
        have, kept, jobs = room(state), 0, []
        for job in found:
            need = state.needs(job.spec)
            if kept + need <= have:
                kept += need
                jobs.append(job.job)
        return Reserved(kept, frozenset(jobs))

    def explain(self, state: State, job: Job, now: float, *, whole: bool) -> list[str]:
        """Describe how interactive jobs affect the wait of a job."""
        if job.phase != "queued":
            return []
        kept = self.reserves(state)
        if job.job in kept.jobs:
            return ["It is interactive: it starts as soon as these are free, for running jobs are making room."]
        lines = []
        if job.spec.interactive:
            lines.append(
                "It is interactive, but what runs can't make room (it can't shrink, or is within a guaranteed quota), "
                "or its owner may hold no more: it gets the first slots that come free."
            )
        for number in sorted(state.interactive & state.active):
            other = state.jobs[number]
            due = limit_at(other)
            left = "" if due is None else f" for {span(due - now)} at most"
            lines.append(f"Interactive job {number} of {other.owner} holds {count(state.charged(other.slots))}{left}.")
        if kept.slots:
            lines.append(f"{count(kept.slots)} of what is free or draining are for interactive jobs that wait.")
        return lines


def waiting(state: State) -> list[Job]:
    """Return the interactive jobs that could start, the first one first."""
    jobs = (state.jobs[job] for job in sorted(state.interactive))
    found = [job for job in jobs if job.phase == "queued" and not state.ignored(job)]
    if state.apart and any(job.spec.min_servers for job in found):  # nobody gives a server up for another's
        idle = sum(1 for _ in state.free(for_servers=True))
        return [job for job in found if job.spec.min_servers <= idle]
    return found


def room(state: State) -> int:
    """Count the slots that are free or will be soon."""
    return sum(1 for _ in state.free()) + sum(state.coming(job, job.draining) for job in state.active_jobs())


def _entities(job: Job) -> tuple[Entity, ...]:
    """Return the user and the group that the job's slots count for."""
    return (("user", job.owner), ("group", job.spec.group)) if job.spec.group else (("user", job.owner),)


def _sizes(state: State) -> dict[JobId, Size]:
    """Return the present size of each job that is not stopping."""
    return {job.job: job.size for job in state.active_jobs() if job.phase != "stopping"}


def _held(state: State) -> Counter[Entity]:
    """Count the held slots by user and group."""
    held: Counter[Entity] = Counter()
    for job in state.active_jobs():
        for entity in _entities(job):
            held[entity] += state.charged(job.slots)
    return held


class _Room:
    """A plan in the making that changes only what interactive jobs need."""

    def __init__(self, state: State, caps: Caps, quotas: Mapping[str, int]) -> None:
        self._state, self._caps, self._quotas = state, caps, quotas
        self._room = room(state)
        self._sizes = _sizes(state)
        self._reasons: dict[JobId, str] = {}
        self._held = _held(state)
        self._elastic = [
            job
            for job in state.active_jobs()
            if job.phase in ("running", "rescaling") and not (job.rigid or job.leaving or state.absent(job.owner))
        ]

    def make(self, jobs: list[Job]) -> _Sizes:
        """Return the sizes with which these jobs start, the first one first."""
        for job in jobs:
            self._seat(job, alone=len(jobs) == 1)
        return self._sizes, self._reasons

    def _seat(self, job: Job, *, alone: bool) -> None:
        need = self._state.needs(job.spec)
        servers = 0 if self._state.apart else job.spec.min_servers
        limits = self._caps.of(job.owner, job.spec.group)
        over = {entity: self._held[entity] + need - limit for entity, limit in limits.items()}
        shrunk = self._shrunk(job, need - self._room, {entity: slots for entity, slots in over.items() if slots > 0})
        if shrunk is None:
            return
        for other, size in shrunk.items():
            gone = self._sizes[other].workers - size.workers
            self._take(self._state.jobs[other], -gone)
            self._sizes[other] = size
            self._reasons[other] = f"makes room for interactive job {job.job} of {job.owner}"
        idle = self._room - need if alone and len(self._state.jobs) == len(self._state.active) + 1 else 0
        spare = min([idle, *(limit - self._held[entity] - need for entity, limit in limits.items())])
        workers = job.largest(need - servers + max(spare, 0))
        self._sizes[job.job] = Size(workers=workers, servers=job.spec.min_servers)
        self._take(job, workers + servers)
        self._reasons[job.job] = "it is interactive"

    def _take(self, job: Job, slots: int) -> None:
        self._room -= slots
        for entity in _entities(job):
            self._held[entity] += slots

    def _shrunk(self, job: Job, lack: int, over: dict[Entity, int]) -> dict[JobId, Size] | None:
        """Shrink others to free `lack` slots, and for each entity in `over` its excess; None if that can't be.

        Jobs of the same owner shrink first, then those with the most workers beyond their minimum.
        """
        shrunk: dict[JobId, Size] = {}
        given: Counter[Entity] = Counter()
        while lack > 0 or over:
            steps = [
                step for other in self._elastic if (step := self._step(job, other, shrunk, given, over)) is not None
            ]
            if not steps:
                return None
            _, _, number, size = max(steps, key=lambda step: step[:3])
            other = self._state.jobs[number]
            freed = shrunk.get(number, self._sizes[number]).workers - size.workers
            shrunk[number] = size
            lack -= freed
            for entity in _entities(other):
                given[entity] += freed
                if entity in over and given[entity] >= over[entity]:
                    del over[entity]
        return shrunk

    def _step(
        self, job: Job, other: Job, shrunk: Mapping[JobId, Size], given: Counter[Entity], over: Mapping[Entity, int]
    ) -> tuple[bool, int, JobId, Size] | None:
        """Return (same owner, workers beyond minimum, number, next smaller size); None if `other` can't shrink."""
        size = shrunk.get(other.job, self._sizes[other.job])
        smaller = other.largest(size.workers - 1)
        if not smaller:
            return None
        own = other.owner == job.owner
        if over and not any(entity in over for entity in _entities(other)):
            return None
        for entity in _entities(other):
            left = self._held[entity] - given[entity] - (size.workers - smaller)
            if entity not in _entities(job) and left < self._quotas.get(entity[1], 0):
                return None
        beyond = size.workers - least_workers(other.spec)
        return own, beyond, other.job, Size(workers=smaller, servers=size.servers)


def _given_back(state: State, caps: Caps, reserved_slots: int) -> _Sizes:
    """Give idle slots back to jobs that gave up workers for interactive jobs, unless a job waits for slots."""
    free = sum(1 for _ in state.free()) - reserved_slots
    if free <= 0 or any(job.phase == "queued" and not state.ignored(job) for job in state.jobs.values()):
        return {}, {}
    held, sizes = _held(state), _sizes(state)
    reasons: dict[JobId, str] = {}
    for number in sorted(state.yielded):
        job = state.jobs[number]
        limits = caps.of(job.owner, job.spec.group)
        rooms = [limit - held[entity] for entity, limit in limits.items()]
        more = job.largest(job.size.workers + min([state.yielded[number], free, *rooms])) - job.size.workers
        if more > 0 and job.phase == "running" and not (job.rigid or job.leaving):
            sizes[number] = replace(job.size, workers=job.size.workers + more)
            reasons[number] = GIVEN_BACK
            free -= more
            for entity in _entities(job):
                held[entity] += more
    return sizes, reasons
