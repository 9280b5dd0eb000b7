"""Shared parts of the policies: the draft of a plan, helpers for sizes, and reasons for people.

Knows `types` only. No clock, no chance: time is `view.now`, ties go by (submitted_at, job). Counts of workers are bare
ints here; a server takes a slot like a worker, or none of the shared ones (`JobView.server_cost`), so `slots(job, n)`
is the cost of `n` workers with their servers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from copy import copy
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from jupyter_elastic.types import JobId, JobView, Plan, Size, View

Ratio = Annotated[float, Meta(ge=0, le=1e6)]
Aging = Annotated[
    float, Meta(ge=0.001, le=1e6, description="priority gained per second of waiting, in seconds of remaining time")
]
Stay = Annotated[Ratio, Meta(description="a shorter job preempts only when it is ahead by this many rescale costs")]
LeastGain = Annotated[
    Ratio, Meta(description="stop growing where a slot adds less than this share of one slot's speed")
]
StartSize = Annotated[
    Literal["min", "max"], Meta(description="start elastic jobs at their minimum or their maximum size")
]
SIZES = tuple(Size(workers) for workers in range(257))


class Configured:
    """Base of this package's policies: keeps the options, which each policy declares with its own type."""

    name: ClassVar[str]
    summary: ClassVar[str]
    work_conserving: ClassVar[bool] = False
    interval_s: ClassVar[float | None] = 30.0

    def __init__(self, options: Any) -> None:
        self.options = options


class Base(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all options: typed, immutable, unknown names refused."""


def ladder(job: JobView) -> Sequence[int]:
    """Return the allowed numbers of workers, ascending; empty if the range and the sizes exclude each other."""
    if job.sizes:
        return _rungs(job.sizes, job.min_slots, job.max_slots)
    return range(job.min_slots, job.max_slots + 1)


@lru_cache(4096)
def _rungs(sizes: tuple[int, ...], least: int, most: int) -> tuple[int, ...]:
    return tuple(sorted({n for n in sizes if least <= n <= most}))


def least(job: JobView) -> int:
    """Return the minimum of workers that the job can run on; 0 if no size is allowed."""
    if job.sizes:
        rungs = ladder(job)
        return rungs[0] if rungs else 0
    return job.min_slots if job.min_slots <= job.max_slots else 0


def most(job: JobView, room: int) -> int:
    """Return the maximum of workers that the job can run on within `room` slots (servers included); 0 if none fits."""
    room -= job.min_servers * job.server_cost
    if job.sizes:
        rungs = ladder(job)
        at = bisect_right(rungs, room)
        return rungs[at - 1] if at else 0
    top = min(room, job.max_slots)
    return top if top >= job.min_slots else 0


def above(job: JobView, workers: int) -> int:
    """Return the next allowed number of workers above `workers`; 0 if there is none."""
    if job.sizes:
        rungs = ladder(job)
        at = bisect_right(rungs, workers)
        return rungs[at] if at < len(rungs) else 0
    return max(workers + 1, job.min_slots) if workers < job.max_slots else 0


def below(job: JobView, workers: int) -> int:
    """Return the next allowed number of workers below `workers`; 0 if there is none."""
    if job.sizes:
        rungs = ladder(job)
        at = bisect_left(rungs, workers)
        return rungs[at - 1] if at else 0
    return min(workers - 1, job.max_slots) if workers > job.min_slots else 0


def slots(job: JobView, workers: int) -> int:
    """Return the number of slots that `workers` workers cost, with the minimum of the job's servers."""
    return workers + job.min_servers * job.server_cost if workers else 0


def sized(job: JobView, size: str) -> int:
    """Return the workers that a policy without rescaling gives a job: the `min` or the `max` of its range."""
    if size == "min":
        return least(job)
    rungs = ladder(job)
    return rungs[-1] if rungs else 0


def seat(  # noqa: C901, PLR0912  a step of the search each
    draft: Draft, order: Iterable[JobView], *, size: str = "min", strict: bool = False, keep: bool = False
) -> JobView | None:
    """Give jobs slots in this order, each whole; return the first waiting one that doesn't fit, None if all do.

    A job that has slots in the draft already is skipped, as is one that doesn't fit; with `strict` also all waiting
    jobs after that one. With `keep` a running job asks for its present size. The walk ends when no slot is free, so
    that its cost grows with what fits and not with the queue.
    """
    free, capacity = draft.free, draft.capacity
    workers, jobs = draft.workers, draft.jobs
    head: JobView | None = None
    running = len(draft.running)
    for job in order:
        number = job.job
        if not free:
            if head is None and job.phase == "queued" and number not in workers:
                head = job
            break
        if job.phase != "queued":
            running -= 1
        elif head is not None and strict:
            if not running:
                break
            continue
        if number in workers:
            continue
        if keep and job.size.workers:
            draft.free = free
            if draft.keep(job):
                free = draft.free
                continue
        wanted = job.min_slots if size == "min" and not job.sizes else sized(job, size)
        cost = wanted + job.min_servers * job.server_cost
        if not wanted or cost > free:
            if job.phase == "queued" and (head is None or not strict):
                if wanted and cost <= capacity:
                    head = head or job
                elif head is None:
                    draft.blocked(job, wanted)  # waits for hosts that aren't there, and blocks nobody
            continue
        workers[number] = wanted
        jobs[number] = job
        free -= cost
    draft.free = free
    if head is not None:
        draft.blocked(head, sized(head, size))
    return head


class Draft:
    """A plan in the making: workers by job, and the number of slots left."""

    __slots__ = ("capacity", "free", "jobs", "kept", "ranked", "reasons", "running", "view", "waiting", "workers")

    def __init__(self, view: View) -> None:
        self.view = view
        self.capacity = self.free = view.capacity
        self.waiting: list[JobView] = []
        self.running: list[JobView] = []
        self._look(view.jobs)
        self.workers: dict[JobId, int] = {}
        self.jobs: dict[JobId, JobView] = {}
        self.kept: dict[JobId, int] = {}
        """Servers beyond the minimum, by job that keeps them."""
        self.reasons: dict[JobId, str] = {}

    def _look(self, jobs: Sequence[JobView]) -> None:
        """Sort the jobs into running and waiting ones, in one walk, as the queue may be long."""
        waiting, running = self.waiting, self.running
        for job in jobs:
            phase = job.phase
            if phase == "queued":
                waiting.append(job)
            elif phase != "stopping":
                running.append(job)
        usual = jobs[0].priority if jobs else 0
        self.ranked = any(True for job in jobs if job.priority != usual)

    def twin(self) -> Draft:
        """Return an independent copy of the draft."""
        twin = copy(self)
        for name in ("workers", "jobs", "kept", "reasons"):
            setattr(twin, name, dict(getattr(self, name)))
        return twin

    def by_priority(self, jobs: list[JobView]) -> list[JobView]:
        """Sort the jobs by priority, the highest first; the order among equals is kept."""
        return sorted(jobs, key=lambda job: -job.priority) if self.ranked else jobs

    def give(self, job: JobView, workers: int) -> bool:
        """Set the job's size to `workers`; False if the slots aren't there. 0 takes all slots."""
        number, servers = job.job, job.min_servers * job.server_cost
        had = self.workers.get(number, 0)
        more = workers - had + servers * (bool(workers) - bool(had))
        if self.kept:
            more -= self.kept.get(number, 0) * job.server_cost
        if more > self.free:
            return False
        self.kept.pop(number, None)
        self.free -= more
        if workers:
            self.workers[number] = workers
            self.jobs[number] = job
        elif had:
            del self.workers[number], self.jobs[number]
        return True

    def resize(self, job: JobView, workers: int, servers: int) -> bool:
        """Set the job's workers and servers, of which each is an allowed number; False if the slots aren't there."""
        number = job.job
        more = workers + servers * job.server_cost - self.cost(job)
        if more > self.free:
            return False
        self.free -= more
        self.workers[number], self.jobs[number] = workers, job
        self.kept.pop(number, None)
        if servers > job.min_servers:
            self.kept[number] = servers - job.min_servers
        return True

    def size(self, job: JobView) -> tuple[int, int]:
        """Return the workers and servers that the draft gives the job."""
        workers = self.workers.get(job.job, 0)
        return workers, (job.min_servers + self.kept.get(job.job, 0) if workers else 0)

    def cost(self, job: JobView) -> int:
        """Return the number of slots that the draft gives the job."""
        return slots(job, self.workers.get(job.job, 0)) + self.kept.get(job.job, 0) * job.server_cost

    def keep(self, job: JobView) -> bool:
        """Let a running job keep its size, servers too; False if that isn't allowed any more or doesn't fit."""
        if not job.allows(job.size.workers) or not self.give(job, job.size.workers):
            return False
        extra = min(job.size.servers, job.max_servers) - job.min_servers
        if extra > 0 and extra * job.server_cost <= self.free:
            self.kept[job.job] = extra
            self.free -= extra * job.server_cost
        return True

    def pin(self) -> None:
        """Give running jobs that may not be preempted their minimum before all other jobs.

        A job whose minimum was raised above its size gets the minimum if it fits, else keeps its size.
        """
        fixed = [job for job in self.running if not job.preemptible]
        for job in fixed:
            self.give(job, min(least(job), job.size.workers) or job.size.workers)
        for job in fixed:
            if not job.allows(self.workers.get(job.job, 0)):
                self.give(job, least(job))

    def keep_all(self, jobs: Iterable[JobView] | None = None) -> None:
        """Let running jobs keep their sizes: the rule of policies that never rescale.

        A job whose owner changed the range to one without its size gets the nearest size below, or its minimum.
        """
        order = list(self.running if jobs is None else jobs)
        if not all(job.preemptible for job in order):
            order.sort(key=lambda job: job.preemptible)
        for job in order:
            if self.keep(job) or self.give(job, below(job, job.size.workers + 1) or least(job)):
                continue
            if not job.preemptible:
                self.give(job, job.size.workers)

    def plan(self, memo: Any = None) -> Plan:
        """Return the finished plan, with a reason for every job whose size changes."""
        jobs, kept = self.jobs, self.kept
        sizes = {}
        for number, workers in self.workers.items():
            servers = jobs[number].min_servers
            sizes[number] = (
                Size(workers, servers + kept.get(number, 0))
                if servers or kept or workers >= len(SIZES)
                else SIZES[workers]
            )
        self._explain()
        return Plan(sizes=sizes, memo=memo, reasons=self.reasons)

    def _explain(self) -> None:
        """Add a reason for each job whose size changes and that has none yet."""
        reasons, workers = self.reasons, self.workers
        winner: JobView | None = None
        for number, job in self.jobs.items():
            held = job.size.workers
            if workers[number] > held:
                if winner is None or (winner.size.workers and not held):
                    winner = job
                if number not in reasons:
                    reasons[number] = "slots are free to grow into" if held else "slots are free for it"
        why = f"makes room for job {winner.job} of {winner.owner}" if winner else "fewer slots are left in the pool"
        for job in self.running:
            number = job.job
            if number not in reasons and workers.get(number, 0) < job.size.workers:
                reasons[number] = why

    def blocked(self, job: JobView, workers: int) -> None:
        """Add the reason why the first job in the queue waits."""
        need = slots(job, workers)
        slot = f"{need} slots" if need != 1 else "1 slot"
        if need > self.capacity:
            self.reasons[job.job] = f"needs {slot} and the pool has {self.capacity}"
        else:
            self.reasons[job.job] = f"needs {slot} and too few are free"
