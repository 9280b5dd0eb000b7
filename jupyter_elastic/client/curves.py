"""Keeps the curves of a job's metrics and of its resource use, with a bounded number of points.

Pure; must know neither jobs nor events.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from jupyter_elastic.client.job_screen import Series
from jupyter_elastic.jobfiles.usage_history import UsagePoint

MAX_POINTS = 360
"""Maximum points of a metric's curve; of a longer one, each four points are reduced to the least and the greatest."""


class CurvePoint(NamedTuple):
    """A value of a metric at `x`, a step or an epoch; reported at the time `at`."""

    x: float
    y: float
    at: float
    epoch: float | None


class MetricCurve:
    """A metric over steps or epochs.

    A long curve is divided into stretches and keeps the least and the greatest value of each, so that spikes stay.
    """

    def __init__(self) -> None:
        self.last = ""
        self._points: list[CurvePoint] = []
        self._stretch: list[CurvePoint] = []
        """The unfinished stretch: its least and its greatest point so far, which come after those in `_points`."""
        self._count, self._width = 0, 2
        """Number of points added to the unfinished stretch, and the number at which a stretch is finished."""
        self._newest = CurvePoint(0.0, 0.0, 0.0, None)

    def add(self, point: CurvePoint) -> None:
        """Add a point. If it lies before the newest one, the job was rolled back: remove the points from there on."""
        self.last = f"{point.y:.4g}"
        if math.isnan(point.y):
            return
        if point.x < self._newest.x:  # rolled back: the curve goes on from the commit
            self._points = [old for old in [*self._points, *self._stretch] if old.x < point.x]
            self._stretch, self._count = [], 0
        self._stretch, self._count = _extremes([*self._stretch, point]), self._count + 1
        if self._count >= self._width:
            self._points += self._stretch
            self._stretch, self._count = [], 0
        if len(self._points) > MAX_POINTS:
            stretches = [self._points[at : at + 4] for at in range(0, len(self._points), 4)]
            self._points = [kept for stretch in stretches for kept in _extremes(stretch)]
            self._width *= 2
        self._newest = point

    def series(self, name: str, begin: float) -> Series:
        """Return the curve with its newest point; times are seconds since `begin`."""
        points = [*self._points, *self._stretch]
        if points and points[-1] != self._newest:
            points.append(self._newest)
        epochs = [point.epoch for point in points if point.epoch is not None]
        return Series(
            name=name,
            points=[(point.x, point.y) for point in points],
            last=self.last,
            times=[round(point.at - begin, 1) for point in points],
            epochs=epochs if len(epochs) == len(points) else [],
        )


def _extremes(points: list[CurvePoint]) -> list[CurvePoint]:
    """Return the points with the least and the greatest value, in their order.

    Of several least points it is the first, of several greatest points the last.
    """
    values = [point.y for point in points]
    least, greatest = values.index(min(values)), len(values) - 1 - values[::-1].index(max(values))
    return [points[at] for at in sorted({least, greatest})]


def usage_curves(points: Sequence[UsagePoint], begin: float) -> list[Series]:
    """Return a curve for each worker's cores and memory and for each GPU; leave out curves with a single point.

    Times are seconds since `begin`.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        x = round(point.at - begin, 1)
        for quantity, values in (("cores busy", point.cores), ("memory in GB", [m / 1e9 for m in point.memory])):
            for number, value in enumerate(values, 1):
                found.setdefault(f"{quantity}: worker {number}", []).append((x, round(value, 3)))
        for slot, busy in point.gpus.items():
            found.setdefault(f"% busy: GPU {slot}", []).append((x, round(100 * busy, 1)))
    return [
        Series(name=name, points=curve, last=f"{curve[-1][1]:.3g}")
        for name, curve in sorted(found.items())
        if len(curve) > 1
    ]
