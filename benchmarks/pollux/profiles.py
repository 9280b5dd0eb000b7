"""How fast a model trains on a placement, and how far an iteration brings it: the measured tables of Pollux.

Format and interpolation are those of the simulator published with Pollux (Qiao et al., OSDI 2021): `placements.csv`
and `scalability.csv` hold seconds per iteration, `validation-<batch>.csv` what one epoch brings at a batch size. Knows
tables and interpolation; must not know jobs, queues or policies. Every answer is kept: a run asks for few distinct.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

from jupyter_elastic.scheduler.sim import tables
from jupyter_elastic.scheduler.sim.tables import TraceError

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
"""Epochs to train; the shortest validation table where a model isn't named."""
MAX_LOCAL = {"yolov3": 8}
"""Samples that fit on one GPU, where that isn't the largest measured number."""
ONE_GPU = frozenset({"ncf"})
"""Models that the reference never spreads over several GPUs."""
MAX_NODES = 16
"""The widest measured spread; more nodes are taken as this many."""

Placement = tuple[int, ...]
"""GPUs on each node, in the order of the job's ranks."""


@dataclass(frozen=True)
class Epochs:
    """One `validation-<batch>.csv`: a row for each epoch, cumulated progress and iterations at its end."""

    progress: tuple[float, ...]
    iteration: tuple[float, ...]
    grad_sqr: tuple[float, ...]
    grad_var: tuple[float, ...]


@dataclass
class Model:
    """A profiled model: time per iteration by placement, progress per iteration by batch size.

    Batch sizes are in samples, times in seconds, progress in iterations at the initial batch size.
    """

    name: str
    lines: dict[Placement, list[tuple[float, float, float]]]
    """Measured placement -> (local batch, step time, sync time), ascending."""
    cloud: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    """Points (nodes, replicas, local batch) and (step time, sync time) there, for placements never measured."""
    epochs: dict[int, Epochs]
    """By batch size, ascending."""
    max_epochs: int
    min_local: int
    max_local: int
    _times: dict[tuple[Placement, int], tuple[float, float]] = field(default_factory=dict)
    _grads: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    _later: dict[int, tuple[float, ...]] = field(default_factory=dict)
    _best: dict[tuple[Placement, int], int] = field(default_factory=dict)
    _iterations: dict[tuple[int, int], float] = field(default_factory=dict)
    _linear: Any = None
    _nearest: Any = None

    def __post_init__(self) -> None:
        self.initial_batch = min(self.epochs)
        self.max_batch = max(self.epochs)
        self._ends = [0.0] + [
            min(table.progress[epoch] for table in self.epochs.values()) for epoch in range(self.max_epochs)
        ]

    def end_of(self, epoch: int) -> float:
        """Progress at which `epoch` epochs are complete: the least over all batch sizes."""
        return self._ends[epoch]

    def max_replicas(self, batch: int) -> int:
        """The most GPUs that a batch can be cut for."""
        return 1 if self.name in ONE_GPU else max(1, batch // self.min_local)

    def split(self, batch: int, replicas: int, *, always_accumulate: bool = False) -> tuple[int, int]:
        """(samples per GPU and pass, additional passes) that make up a batch on this many GPUs.

        One GPU with more than the initial batch accumulates at least once, because the gradient's noise can't be
        measured from a single pass; `always_accumulate` does so for every batch on one GPU, as the reference's Optimus.
        """
        local = math.ceil(batch / replicas - 1e-8)
        passes = math.ceil(local / self.max_local - 1e-8) - 1
        if replicas == 1 and (always_accumulate or batch > self.initial_batch):
            passes = max(1, passes)
        atomic = math.ceil(local / (passes + 1) - 1e-8)
        return min(atomic, int(self.max_batch / (replicas * (passes + 1)))), passes

    def times(self, placement: Placement, local: int) -> tuple[float, float]:
        """(step time, sync time) in seconds of one pass with `local` samples on each GPU."""
        least = min(placement[i:] + placement[:i] for i in range(len(placement)))
        key = (least, local)
        found = self._times.get(key)
        if found is None:
            found = self._times[key] = self._measured(least, local) or self._between(least, local)
        return found

    def step_time(self, placement: Placement, batch: int) -> float:
        """Seconds of one whole iteration of a batch on a placement, accumulation included."""
        atomic, passes = self.split(batch, sum(placement))
        step, sync = self.times(placement, atomic)
        return step + (step - sync) * passes

    def noise(self, batch: int, epoch: int) -> tuple[float, float]:
        """(squared norm, variance) of the gradient in an epoch, between the two nearest measured batch sizes."""
        key = (batch, epoch)
        found = self._grads.get(key)
        if found is None:
            low, high = self._around(batch)
            a, b = self.epochs[low], self.epochs[high]
            if low == high:
                found = a.grad_sqr[epoch], a.grad_var[epoch]
            else:
                up, down, width = batch - low, high - batch, high - low
                found = (
                    (up * b.grad_sqr[epoch] + down * a.grad_sqr[epoch]) / width,
                    (up * b.grad_var[epoch] + down * a.grad_var[epoch]) / width,
                )
            self._grads[key] = found
        return found

    def gain(self, batch: int, epoch: int) -> float:
        """Progress of one iteration at a batch size, in iterations at the initial one (McCandlish et al., 2018)."""
        sqr, var = self.noise(batch, epoch)
        return (var + sqr) / (var / (batch / self.initial_batch) + sqr)

    def iterations(self, batch: int, epoch: int) -> float:
        """Iterations at a batch size until `epoch` (counted from 0) is complete, as measured."""
        found = self._iterations.get((batch, epoch))
        if found is None:
            low, high = self._around(batch)
            found, b = self.epochs[low].iteration[epoch], self.epochs[high].iteration[epoch]
            if low != high:
                found = ((batch - low) * b + (high - batch) * found) / (high - low)
            self._iterations[batch, epoch] = found
        return found

    def later_work(self, batch: int) -> tuple[float, ...]:
        """By epoch e: iterations at a batch from the start of epoch e to the end of the training."""
        found = self._later.get(batch)
        if found is None:
            left, total = [0.0], 0.0
            for epoch in reversed(range(self.max_epochs)):
                total += (self._ends[epoch + 1] - self._ends[epoch]) / self.gain(batch, epoch)
                left.append(total)
            found = self._later[batch] = tuple(reversed(left))
        return found

    def best_batch(self, placement: Placement, epoch: int) -> int:
        """The batch of the most progress per second on a placement in an epoch, among 50 sizes as Pollux tries."""
        replicas = sum(placement)
        key = (placement, epoch)
        found = self._best.get(key)
        if found is None:
            least = min(max(self.initial_batch, self.min_local * replicas), self.max_batch)
            sizes = dict.fromkeys(math.ceil(size - 1e-6) for size in np.geomspace(least, self.max_batch).tolist())
            found = self._best[key] = max(sizes, key=lambda size: self.speed(placement, size, epoch))
        return found

    def speed(self, placement: Placement, batch: int, epoch: int) -> float:
        """Progress per second of a batch on a placement in an epoch."""
        replicas = sum(placement)
        atomic, passes = self.split(batch, replicas)
        step, sync = self.times(placement, atomic)
        return self.gain(replicas * atomic * (passes + 1), epoch) / (step + (step - sync) * passes)

    def _around(self, batch: int) -> tuple[int, int]:
        low = max((size for size in self.epochs if size <= batch), default=None)
        high = min((size for size in self.epochs if size >= batch), default=None)
        if low is None or high is None:
            raise TraceError(
                f"model {self.name!r} was measured with batches of {self.initial_batch} to {self.max_batch} samples, "
                f"not {batch}; change the trace's batch_size"
            )
        return low, high

    def _measured(self, placement: Placement, local: int) -> tuple[float, float] | None:
        points = self.lines.get(placement)
        if points is None:
            return None
        if not points[0][0] <= local <= points[-1][0]:  # the reference stops here; we take the nearest measured point
            _, step, sync = points[0] if local < points[0][0] else points[-1]
            return step, sync
        if len(points) == 1:
            return points[0][1:]
        right = min(max(bisect_left(points, (local,)), 1), len(points) - 1)
        (x0, *y0), (x1, *y1) = points[right - 1], points[right]
        step, sync = ((b - a) / (x1 - x0) * (local - x0) + a for a, b in zip(y0, y1, strict=True))
        return step, sync

    def _between(self, placement: Placement, local: int) -> tuple[float, float]:
        if self._linear is None:
            self._linear = LinearNDInterpolator(*self.cloud)
        point = [min(len(placement), MAX_NODES), sum(placement), local]
        step, sync = self._linear(point)[0].tolist()
        if math.isnan(step) or math.isnan(
            sync
        ):  # outside of what was measured: the reference stops, we take the nearest
            if self._nearest is None:
                self._nearest = NearestNDInterpolator(*self.cloud, rescale=True)
            step, sync = self._nearest(point)[0].tolist()
        return step, sync


def read_models(folder: Path) -> dict[str, Model]:
    """Every model below a folder of Pollux profiles; TraceError when there is none or a table is damaged."""
    if not folder.is_dir():
        raise TraceError(f"{folder}: no such folder; --profiles wants the folder that holds one folder for each model")
    models = {path.parent.name: read_model(path.parent) for path in sorted(folder.glob("*/placements.csv"))}
    if not models:
        raise TraceError(f"{folder}: no <model>/placements.csv in it; is this a folder of Pollux profiles?")
    return models


class _Time(msgspec.Struct):
    local_bsz: tables.Count
    step_time: tables.Positive
    sync_time: tables.NotNegative


class _Placed(_Time, kw_only=True):
    placement: Annotated[str, msgspec.Meta(pattern="^[1-9]+$")]
    """One digit for each node: the GPUs there."""


class _Scaled(_Time, kw_only=True):
    num_nodes: tables.Count
    num_replicas: tables.Count


class _Epoch(msgspec.Struct):
    progress: tables.NotNegative
    iteration: tables.NotNegative
    grad_sqr: tables.Number
    grad_var: tables.Number


def read_model(folder: Path) -> Model:
    """One model's tables."""
    lines: dict[Placement, list[tuple[float, float, float]]] = {}
    groups: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for _, row in tables.rows(folder / "placements.csv", _Placed):
        placement = tuple(map(int, row.placement))
        lines.setdefault(placement, []).append((row.local_bsz, row.step_time, row.sync_time))
        groups.setdefault((len(placement), sum(placement), row.local_bsz), []).append((row.step_time, row.sync_time))
    locals_ = [int(point[0]) for line in lines.values() for point in line]
    points: list[tuple[int, int, int]] = sorted(groups)
    values = [tuple(np.mean(np.array(groups[point]), axis=0)) for point in points]
    for _, scaled in tables.rows(folder / "scalability.csv", _Scaled):
        points.append((scaled.num_nodes, scaled.num_replicas, scaled.local_bsz))
        values.append((scaled.step_time, scaled.sync_time))
    epochs = _validations(folder)
    if not locals_:
        raise TraceError(f"{folder / 'placements.csv'}: line 2: expected at least one measurement")
    shortest = min(len(table.progress) for table in epochs.values())
    return Model(
        name=folder.name,
        lines={placement: sorted(line) for placement, line in lines.items()},
        cloud=(np.array(points, dtype=float), np.array(values, dtype=float)),
        epochs=epochs,
        max_epochs=min(EPOCHS.get(folder.name, shortest), shortest),
        min_local=min(locals_),
        max_local=MAX_LOCAL.get(folder.name, max(locals_)),
    )


def _validations(folder: Path) -> dict[int, Epochs]:
    found = {}
    for path in folder.glob("validation-*.csv"):
        batch = path.stem.partition("-")[2]
        if not batch.isdigit() or int(batch) < 1:
            raise TraceError(f"{path}: expected a name of the form validation-<batch size>.csv")
        table = [msgspec.structs.astuple(row) for _, row in tables.rows(path, _Epoch)]
        if not table:
            tables.complain(path, 2, 1, "one row for each epoch; the table is empty")
        found[int(batch)] = Epochs(*zip(*table, strict=True))
    if not found:
        raise TraceError(f"{folder}: no validation-<batch size>.csv in it; is this a folder of Pollux profiles?")
    return dict(sorted(found.items()))
