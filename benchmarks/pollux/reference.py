"""Tiresias and Optimus with its oracle, as the simulator published with Pollux runs them (section 5.3 of the paper).

These two are the yardstick: their published average JCTs are reproduced to the last digit, so nothing here may be
"improved". Sources: Gu et al., "Tiresias", NSDI 2019; Peng et al., "Optimus", EuroSys 2018; Qiao et al., "Pollux", OSDI
2021. Knows the jobs of the reference mode; must not know the clock's loop.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Protocol

from benchmarks.pollux.profiles import Model

Allocation = list[int]
"""The node of each rank."""

GPU_SECONDS = 16 * 3600
"""Attained service at which Tiresias puts a job into its second queue."""


class Wanting(Protocol):
    """What the two policies look at."""

    name: str
    model: Model
    batch: int
    replicas: int
    epoch: int


class Tiresias:
    """Least attained service in two queues; inside a queue by order of entry; a job that doesn't fit is skipped."""

    def __init__(self) -> None:
        self._queues: tuple[list[str], list[str]] = ([], [])
        self._running: dict[str, bool] = {}
        self._checked: dict[str, int] = {}
        self._executed: dict[str, int] = {}

    def allocate(
        self, now: int, jobs: Mapping[str, Wanting], held: Mapping[str, Allocation], nodes: int, gpus: int
    ) -> dict[str, Allocation]:
        """The next allocation; a job that keeps running keeps its nodes."""
        first, second = self._queues
        first[:] = [name for name in first if name in jobs]
        second[:] = [name for name in second if name in jobs]
        self._running = {name: running for name, running in self._running.items() if name in jobs}
        for name in jobs:
            if name not in self._running:
                self._running[name] = False
                first.append(name)
        for name, job in jobs.items():
            if self._running[name]:
                self._executed[name] = self._executed.get(name, 0) + now - self._checked[name]
                if self._executed[name] * job.replicas >= GPU_SECONDS and name in first:
                    first.remove(name)
                    second.append(name)
            self._checked[name] = now
        order = first + second
        room = nodes * gpus
        kept = {name: nodes_ for name, nodes_ in held.items() if name in jobs}
        for name in order:
            self._running[name] = jobs[name].replicas <= room
            if self._running[name]:
                room -= jobs[name].replicas
            else:
                kept.pop(name, None)
        sizes = {name: jobs[name].replicas for name in order if self._running[name]}
        return place_on_emptiest(sizes, kept, list(sizes), nodes, gpus)


class Optimus:
    """One GPU for everyone, then the next GPU to whom it saves most time, by the true step times and work left."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, int, int], float] = {}

    def allocate(
        self,
        now: int,  # noqa: ARG002 - the reference looks at no clock here
        jobs: Mapping[str, Wanting],
        held: Mapping[str, Allocation],
        nodes: int,
        gpus: int,
    ) -> dict[str, Allocation]:
        """The next allocation; a job whose size stays keeps its nodes."""
        room = nodes * gpus
        sizes: dict[str, int] = {}
        heap: list[tuple[float, int, str]] = []
        for index, (name, job) in enumerate(jobs.items()):
            sizes[name] = 1 if room else 0
            if room:
                room -= 1
                if room:
                    self._push(heap, index, job, 1)
        while room and heap:
            _, index, name = heapq.heappop(heap)
            sizes[name] += 1
            self._push(heap, index, jobs[name], sizes[name])
            room -= 1
        kept = {name: nodes_ for name, nodes_ in held.items() if name in jobs and len(nodes_) == sizes[name]}
        order = sorted((name for name in jobs if sizes[name]), key=lambda name: sizes[name])
        return place_on_emptiest(sizes, kept, order, nodes, gpus)

    def _push(self, heap: list[tuple[float, int, str]], index: int, job: Wanting, size: int) -> None:
        if size + 1 > job.model.max_replicas(job.batch):
            return
        last = job.model.max_epochs - 1
        left = 1.0
        if job.epoch < last:
            left = job.model.iterations(job.batch, last) - job.model.iterations(job.batch, job.epoch)
        gain = (self._time(job, size) - self._time(job, size + 1)) * left
        if gain > 0:
            heapq.heappush(heap, (-gain, index, job.name))

    def _time(self, job: Wanting, size: int) -> float:
        key = (job.model.name, job.batch, size)
        found = self._times.get(key)
        if found is None:
            atomic, passes = job.model.split(job.batch, size, always_accumulate=True)
            step, sync = job.model.times(packed(size, 4), atomic)  # the reference assumes nodes of 4
            found = self._times[key] = step + (step - sync) * passes
        return found


def packed(size: int, gpus: int) -> tuple[int, ...]:
    """A placement on as few empty nodes as possible."""
    return (gpus,) * (size // gpus) + ((size % gpus,) if size % gpus else ())


def place_on_emptiest(
    sizes: Mapping[str, int], kept: Mapping[str, Allocation], order: Sequence[str], nodes: int, gpus: int
) -> dict[str, Allocation]:
    """Place `order` beside what is kept, always on the node with the most free GPUs, the first of equals."""
    found = {name: list(allocation) for name, allocation in kept.items()}
    free = [gpus] * nodes
    for allocation in found.values():
        for node in allocation:
            free[node] -= 1
    for name in order:
        if name in found:
            continue
        allocation = found[name] = []
        while len(allocation) < sizes[name]:
            node = max(range(nodes), key=free.__getitem__)
            taken = min(free[node], sizes[name] - len(allocation))
            allocation.extend([node] * taken)
            free[node] -= taken
    return found
