"""Our own policies in the reference mode: the same `View -> Plan` as in the daemon, with the tables as an oracle.

Knows the vocabulary, the reference's jobs and placement; must not know which policy it asks. A policy sees the true
speed of every size on well packed nodes and the true work left, as the reference's Optimus does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.pollux.profiles import Model
from benchmarks.pollux.reference import Allocation, packed
from benchmarks.pollux.simulator import RESTART, Training, shape
from jupyter_elastic.scheduler.core.plan import illegal
from jupyter_elastic.types import HostView, JobView, Policy, Profile, Size, Speed, View

OWNER = "trace"
PAYBACK = 2.0
"""A job is brought together when that saves this many times the restart."""


class Advised:
    """A policy of ours, asked every interval. An illegal plan leaves the present allocation standing."""

    def __init__(self, policy: Policy, *, rigid: bool = False, gather: bool = True) -> None:
        self.rejected: list[str] = []
        self._policy = policy
        self._rigid, self._gather = rigid, gather
        self._memo: Any = None
        self._ids: dict[str, int] = {}
        self._changed: dict[str, int] = {}
        self._speeds: dict[tuple[str, int, int], tuple[Speed, ...]] = {}
        self._noises: dict[tuple[str, int, int], float | None] = {}

    def allocate(
        self, now: int, jobs: Mapping[str, Training], held: Mapping[str, Allocation], nodes: int, gpus: int
    ) -> dict[str, Allocation]:
        """Ask the policy for sizes and place them; jobs whose size stays keep their nodes."""
        view = self.view(now, jobs, held, nodes, gpus)
        plan = self._policy.plan(view)
        reason = illegal(plan, view)
        if reason:
            self.rejected.append(f"at {now} s: {reason}")
            return {name: list(nodes_) for name, nodes_ in held.items()}
        self._memo = plan.memo
        sizes = {name: plan.sizes[self._ids[name]].workers for name in jobs if self._ids[name] in plan.sizes}
        found = place(sizes, held, nodes, gpus)
        if self._gather:
            gather(found, held, jobs, nodes, gpus)
        for name in jobs:
            if found.get(name, []) != held.get(name, []):
                self._changed[name] = now
        return found

    def view(
        self, now: int, jobs: Mapping[str, Training], held: Mapping[str, Allocation], nodes: int, gpus: int
    ) -> View:
        """What the policy sees of the reference's state."""
        free = [gpus] * nodes
        for allocation in held.values():
            for node in allocation:
                free[node] -= 1
        hosts = tuple(HostView(name=f"node{i:02d}", capacity=gpus, free=free[i]) for i in range(nodes))
        views = [self._job(job, held.get(name, ()), nodes, gpus) for name, job in jobs.items()]
        views.sort(key=lambda job: (job.submitted_at, job.job))
        return View(now=float(now), hosts=hosts, jobs=tuple(views), memo=self._memo)

    def _job(self, job: Training, held: Allocation | tuple[()], nodes: int, gpus: int) -> JobView:
        number = self._ids.setdefault(job.name, len(self._ids) + 1)
        least, most = self._range(job, nodes * gpus)
        changed = self._changed.get(job.name)
        return JobView(
            job=number,
            owner=OWNER,
            name=job.model.name,
            phase="running" if held else "queued",
            submitted_at=float(job.submitted),
            queued_at=float(changed if changed is not None and not held else job.submitted),
            started_at=job.timeline.started,
            changed_at=changed,
            size=Size(len(held)),
            min_slots=least,
            max_slots=most,
            attained_s=job.attained,
            run_s=job.run,
            preemptions=job.timeline.restarts,
            profile=self._profile(job, least, most, gpus),
        )

    def _range(self, job: Training, capacity: int) -> tuple[int, int]:
        if self._rigid:
            return job.replicas, job.replicas
        batch = job.model.max_batch if job.adapt else job.batch
        return 1, min(job.model.max_replicas(batch), capacity)

    def _profile(self, job: Training, least: int, most: int, gpus: int) -> Profile:
        model, epoch = job.model, min(job.epoch, job.model.max_epochs - 1)
        if job.adapt:
            # speed in *useful* samples: progress counts iterations at the initial batch
            left = (model.end_of(model.max_epochs) - job.progress) * model.initial_batch
            done = job.progress * model.initial_batch
        else:
            left = job.iterations_left() * job.batch
            done = model.later_work(job.batch)[0] * job.batch - left
        key = (model.name, epoch if job.adapt else -job.batch, most)
        speeds = self._speeds.get(key)
        if speeds is None:
            speeds = self._speeds[key] = tuple(
                Speed(workers=n, samples_per_s=_speed(model, job, n, gpus, epoch)) for n in range(1, most + 1)
            )
        sqr, var = model.noise(job.batch, epoch)
        return Profile(
            speeds=speeds[least - 1 :],
            done=done,
            remaining=left,
            rescale_cost_s=float(RESTART),
            noise_scale=None if job.adapt else max(0.0, var / sqr) * model.initial_batch,
        )


def _speed(model: Model, job: Training, n: int, gpus: int, epoch: int) -> float:
    placement = packed(n, gpus)
    if job.adapt:
        return model.speed(placement, model.best_batch(placement, epoch), epoch) * model.initial_batch
    return job.batch / model.step_time(placement, job.batch)


def place(sizes: Mapping[str, int], held: Mapping[str, Allocation], nodes: int, gpus: int) -> dict[str, Allocation]:
    """Nodes for sizes: what stays keeps its nodes, then the largest first, on few nodes with little left over."""
    found = {name: list(held[name]) for name, size in sizes.items() if size and len(held.get(name, ())) == size}
    free = [gpus] * nodes
    for allocation in found.values():
        for node in allocation:
            free[node] -= 1
    for name in sorted((name for name, size in sizes.items() if size and name not in found), key=lambda n: -sizes[n]):
        found[name] = _fill(sizes[name], free)
    return found


def gather(
    found: dict[str, Allocation], held: Mapping[str, Allocation], jobs: Mapping[str, Training], nodes: int, gpus: int
) -> None:
    """Bring spread jobs that keep their size together where that pays, each onto a node that it already has GPUs on.

    It pays when the time saved until the job's end is `PAYBACK` times the restart.
    """
    free = [gpus] * nodes
    for allocation in found.values():
        for node in allocation:
            free[node] -= 1
    for name, allocation in list(found.items()):
        if held.get(name) != allocation or len(set(allocation)) <= -(-len(allocation) // gpus):
            continue
        job = jobs[name]
        mine = [allocation.count(node) for node in range(nodes)]
        room = [count + own for count, own in zip(free, mine, strict=True)]
        options = [_fill(len(allocation), list(room), anchor) for anchor in sorted(set(allocation))]
        best = min(options, key=lambda option: _time_left(job, option))
        if _time_left(job, allocation) - _time_left(job, best) - RESTART >= PAYBACK * RESTART:
            found[name] = best
            free = [count - best.count(node) for node, count in enumerate(room)]


def _time_left(job: Training, allocation: Allocation) -> float:
    placement = shape(allocation)
    if job.adapt:
        epoch = min(job.epoch, job.model.max_epochs - 1)
        left = job.model.end_of(job.model.max_epochs) - job.progress
        return left / job.model.speed(placement, job.best_batch(placement), epoch)
    return job.iterations_left() * job.model.step_time(placement, job.batch)


def _fill(size: int, free: list[int], anchor: int | None = None) -> Allocation:
    """Take `size` GPUs from as few nodes as possible, from the node `anchor` first."""
    taken: Allocation = []
    if anchor is not None:
        count = min(size, free[anchor])
        free[anchor] -= count
        taken.extend([anchor] * count)
    while len(taken) < size:
        need = size - len(taken)
        fitting = [node for node in range(len(free)) if free[node] >= need]
        node = min(fitting, key=free.__getitem__) if fitting else max(range(len(free)), key=free.__getitem__)
        count = min(need, free[node])
        free[node] -= count
        taken.extend([node] * count)
    return sorted(taken)
