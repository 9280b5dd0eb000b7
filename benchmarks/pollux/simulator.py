"""The reference mode: the semantics of the simulator published with Pollux (OSDI 2021), to the last digit.

Every 60 s: first each job trains on its present GPUs, then the clock moves, then the policy allocates. Any change of a
job's nodes, the first start too, costs 30 s without progress. Knows profiles and allocations; must not know files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from benchmarks.pollux.profiles import Model, Placement
from benchmarks.pollux.reference import Allocation, packed
from jupyter_elastic.scheduler.sim.schedule_metrics import JobTimeline, SimulatedRun, Span, fluid_alone
from jupyter_elastic.types.errors import BadRequest

INTERVAL = 60
"""Seconds between two decisions."""
RESTART = 30
"""Seconds without progress after each change of allocation."""

PATIENCE = 10 * 86_400
"""Seconds in which jobs wait and none runs; then they are taken to wait for ever."""


@dataclass
class Training:
    """A job of the reference mode, and how far it is.

    `batch` is the samples of one iteration over all GPUs; progress counts iterations at the model's initial batch.
    """

    name: str
    model: Model
    submitted: int
    replicas: int
    """GPUs that the trace asks for; used by Tiresias alone."""
    batch: int
    adapt: bool = False
    """Choose the batch for the most progress per second, as Pollux does, instead of the trace's."""
    epoch: int = 0
    progress: float = 0.0
    ended: int | None = None
    placement: Placement = ()
    attained: float = 0.0
    """GPU-seconds so far."""
    run: float = 0.0
    """Seconds with GPUs so far."""
    pause: float = 0.0
    """Seconds of the last restart that are still to come."""
    split: tuple[int, int] = (0, 0)
    timeline: JobTimeline = field(init=False)

    def __post_init__(self) -> None:
        self.timeline = JobTimeline(self.name, self.submitted, model=self.model.name)

    def place(self, placement: Placement) -> None:
        """Restart on these GPUs; () takes all away."""
        self.placement = placement
        if placement:
            self.pause = RESTART
            self._split()

    def advance(self, now: int, seconds: int) -> None:
        """Train from `now` on for `seconds`."""
        if not self.placement:
            return
        replicas = sum(self.placement)
        self.attained += seconds * replicas
        self.run += seconds
        left = seconds - min(self.pause, seconds)
        self.pause -= seconds - left
        while left > 0 and self.ended is None:
            speed = self.speed()
            end = self.model.end_of(self.epoch + 1)
            if self.progress + speed * left < end:
                self.progress += speed * left
                return
            taken = round((end - self.progress) / speed)
            self.epoch += 1
            self.progress = end
            left -= taken
            if self.epoch > self.model.max_epochs - 1:
                self.ended = int(now + seconds - left)
            elif self.adapt:
                self._split()

    def speed(self) -> float:
        """Progress per second on the present GPUs in the present epoch."""
        atomic, passes = self.split
        step, sync = self.model.times(self.placement, atomic)
        gain = self.model.gain(sum(self.placement) * atomic * (passes + 1), self.epoch)
        return gain / (step + (step - sync) * passes)

    def _split(self) -> None:
        replicas = sum(self.placement)
        batch = self.best_batch(self.placement) if self.adapt else self.batch
        self.split = self.model.split(batch, replicas)

    def best_batch(self, placement: Placement) -> int:
        """The batch of the most progress per second on a placement in the present epoch."""
        return self.model.best_batch(placement, self.epoch)

    def iterations_left(self) -> float:
        """Iterations at the trace's batch until the end, by the true gains."""
        return work_left(self.model, self.batch, self.epoch, self.progress)


class Spread(Protocol):
    """A policy of the reference mode: who gets GPUs on which nodes."""

    def allocate(
        self, now: int, jobs: Mapping[str, Training], held: Mapping[str, Allocation], nodes: int, gpus: int
    ) -> dict[str, Allocation]:
        """The allocation of every job that is to run, for `jobs` that are submitted and unfinished, in trace order."""
        ...


def work_left(model: Model, batch: int, epoch: int = 0, progress: float = 0.0) -> float:
    """Iterations at a fixed batch from a point of the training to its end."""
    if epoch >= model.max_epochs:
        return 0.0
    later = model.later_work(batch)
    return (model.end_of(epoch + 1) - progress) / model.gain(batch, epoch) + later[epoch + 1]


def simulate(
    jobs: Sequence[Training],
    policy: Spread,
    *,
    name: str,
    nodes: int = 16,
    gpus: int = 4,
    tick: Callable[[int, int], None] | None = None,
    horizon_s: float = 400 * 86_400,
) -> SimulatedRun:
    """Run the jobs to their end under a policy. `tick(done, of)` is told how many jobs are finished.

    BadRequest when the pool is empty, a job can never start, or nothing has ended by the horizon.
    """
    if nodes < 1 or gpus < 1:
        raise BadRequest(f"a pool of {nodes} nodes with {gpus} GPUs each can't run anything; give at least one of both")
    began = time.perf_counter()
    run = SimulatedRun(policy=name, capacity=nodes * gpus, timelines=[job.timeline for job in jobs])
    loop = _Loop(list(jobs), policy, nodes, gpus, run)
    done, idle_since = -1, 0
    while loop.waiting or loop.active:
        loop.step()
        idle_since = loop.now if loop.held or not loop.active else idle_since
        if tick is not None and loop.done != done:
            done = loop.done
            tick(done, len(jobs))
        if loop.now > horizon_s or loop.now - idle_since > PATIENCE:
            raise BadRequest(
                f"under {name} {len(loop.active)} jobs (first: {next(iter(loop.active))}) never end; do they fit into "
                f"{nodes} nodes with {gpus} GPUs?"
            )
    run.wall = time.perf_counter() - began
    return run


class _Loop:
    def __init__(self, jobs: list[Training], policy: Spread, nodes: int, gpus: int, run: SimulatedRun) -> None:
        self.rank = {job.name: index for index, job in enumerate(jobs)}
        self.waiting = sorted(jobs, key=lambda job: -job.submitted)
        self.active: dict[str, Training] = {}
        self.held: dict[str, Allocation] = {}
        self.since: dict[str, int] = {}
        self.policy, self.nodes, self.gpus, self.run = policy, nodes, gpus, run
        self.now = 0
        self.done = 0
        for job in jobs:
            job.timeline.alone = alone(job.model, job.batch, nodes * gpus, gpus)
        if len(self.rank) != len(jobs):
            raise BadRequest("two jobs of the workload have the same name; make the names unique")

    def step(self) -> None:
        for job in self.active.values():
            job.advance(self.now, INTERVAL)
        self.now += INTERVAL
        if not self.active and self.waiting:  # nothing to do until the next submission
            self.now = max(self.now, -(-self.waiting[-1].submitted // INTERVAL) * INTERVAL)
        self._retire([job for job in self.active.values() if job.ended is not None])
        if self.waiting and self.waiting[-1].submitted <= self.now:
            while self.waiting and self.waiting[-1].submitted <= self.now:
                job = self.waiting.pop()
                self.active[job.name] = job
            self.active = dict(sorted(self.active.items(), key=lambda item: self.rank[item[0]]))
        if not self.active:
            return
        began = time.perf_counter()
        wanted = self.policy.allocate(self.now, self.active, self.held, self.nodes, self.gpus)
        self.run.decisions.append(time.perf_counter() - began)
        for name, job in self.active.items():
            before, after = self.held.get(name, []), wanted.get(name, [])
            if before != after:
                self._change(job, before, after)
        self.held = wanted

    def _retire(self, jobs: Iterable[Training]) -> None:
        for job in list(jobs):
            assert job.ended is not None
            held = self.held.pop(job.name)
            job.timeline.spans.append(Span(self.since.pop(job.name), job.ended, len(held)))
            job.timeline.ended = job.ended
            del self.active[job.name]
            self.done += 1

    def _change(self, job: Training, before: Allocation, after: Allocation) -> None:
        if before:
            job.timeline.spans.append(Span(self.since.pop(job.name), self.now, len(before)))
        if after:
            self.since[job.name] = self.now
            if job.timeline.started is None:
                job.timeline.started = self.now
            else:
                job.timeline.restarts += 1
        job.place(shape(after))


def shape(allocation: Allocation) -> Placement:
    """GPUs on each node, in the order of ranks."""
    counts: list[int] = []
    last = -1
    for node in allocation:
        if node == last:
            counts[-1] += 1
        else:
            counts.append(1)
            last = node
    return tuple(counts)


def alone(model: Model, batch: int, capacity: int, gpus: int) -> Callable[[float], float]:
    """Seconds that a job would take alone on a share of the pool, on well packed nodes."""

    @cache
    def inner() -> Callable[[float], float]:
        sizes = range(1, min(model.max_replicas(batch), capacity) + 1)
        return fluid_alone(lambda n: 1.0 / model.step_time(packed(n, gpus), batch), work_left(model, batch), sizes)

    return lambda share: inner()(share) + RESTART
