"""Make room for interactive jobs: people wait for them, so elastic jobs shrink at once, whatever the policy.

This happens before the policy is asked: neither an interactive job that waits for slots which others are giving back
nor these slots are in the view; once it has them it is shown as a job that no plan may pause. No running job loses all
its slots for it, and nobody goes below a guaranteed quota. If that gives no room the job waits in the queue like any
other and gets the first slots that come free.
Knows the state and the administrator's limits; must not know policies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from jupyter_elastic.scheduler.core import holds
from jupyter_elastic.scheduler.core.caps import Caps, Entity
from jupyter_elastic.scheduler.core.plan import difference
from jupyter_elastic.scheduler.core.reservation import room, waiting
from jupyter_elastic.scheduler.core.state import Job, State, least_workers
from jupyter_elastic.types import AnyEventData, JobId, Plan, RescaleRequested, Size

GIVEN_BACK = "the slots that it gave up for interactive jobs are idle again"


def make_room(state: State, most: Caps, quotas: Mapping[str, int]) -> list[AnyEventData]:
    """Return the starts and shrinks that interactive jobs need now, or else the growth of jobs that gave up slots."""
    jobs = waiting(state)
    if jobs:
        return _Room(state, most, quotas).events(jobs)
    if state.yielded:
        return _given_back(state, most)
    return []


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


def _events(state: State, sizes: dict[JobId, Size], reasons: dict[JobId, str]) -> list[AnyEventData]:
    """Return the events that lead to these sizes, each with the number of workers given up so far."""
    found = difference(state, Plan(sizes=sizes, reasons=reasons))
    for at, data in enumerate(found):
        if isinstance(data, RescaleRequested):
            gone = state.jobs[data.job].size.workers - (len(data.slots) - data.servers)
            found[at] = replace(data, yielded=state.yielded.get(data.job, 0) + gone)
    return found


class _Room:
    """A plan in the making that changes only what interactive jobs need."""

    def __init__(self, state: State, most: Caps, quotas: Mapping[str, int]) -> None:
        self._state, self._most, self._quotas = state, most, quotas
        self._room = room(state)
        self._sizes = _sizes(state)
        self._reasons: dict[JobId, str] = {}
        self._held = _held(state)
        self._elastic = [
            job
            for job in state.active_jobs()
            if job.phase in ("running", "rescaling") and not (job.rigid or job.leaving or state.absent(job.owner))
        ]

    def events(self, jobs: list[Job]) -> list[AnyEventData]:
        """Return the events that start these jobs, the first one first."""
        for job in jobs:
            self._seat(job, alone=len(jobs) == 1)
        return _events(self._state, self._sizes, self._reasons)

    def _seat(self, job: Job, *, alone: bool) -> None:
        need = self._state.needs(job.spec)
        servers = 0 if self._state.apart else job.spec.min_servers
        limits = self._most.of(job.owner, job.spec.group)
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


def _given_back(state: State, most: Caps) -> list[AnyEventData]:
    """Give idle slots back to jobs that gave up workers for interactive jobs, unless a job waits for slots."""
    free = sum(1 for _ in state.free()) - holds.held(state)
    if free <= 0 or any(job.phase == "queued" and not state.ignored(job) for job in state.jobs.values()):
        return []
    held, sizes, reasons = _held(state), _sizes(state), {}
    for number in sorted(state.yielded):
        job = state.jobs[number]
        limits = most.of(job.owner, job.spec.group)
        rooms = [limit - held[entity] for entity, limit in limits.items()]
        more = job.largest(job.size.workers + min([state.yielded[number], free, *rooms])) - job.size.workers
        if more > 0 and job.phase == "running" and not (job.rigid or job.leaving):
            sizes[number] = replace(job.size, workers=job.size.workers + more)
            reasons[number] = GIVEN_BACK
            free -= more
            for entity in _entities(job):
                held[entity] += more
    return _events(state, sizes, reasons) if reasons else []
