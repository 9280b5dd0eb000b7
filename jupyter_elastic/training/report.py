"""`training.report(loss=...)`: how far this training is, said often and sent seldom.

Knows no framework: a value is anything that becomes a float. Values are kept as they are and read only when a report
goes out, so that a step never waits for its GPU.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from jupyter_elastic.training import session
from jupyter_elastic.training.context import context
from jupyter_elastic.training.membership import in_job
from jupyter_elastic.types import Progress

INTERVAL_S = 0.25
"""The one limit on the way of a metric to the journal and to every view: no more than a person can follow."""
AVERAGED = 20
"""Of the values that came since the last sending, so many, the newest, are averaged."""
WINDOW_S = 5.0
"""Time over which samples per second are measured."""
EXACT = {
    "step": int,
    "epoch": float,
    "epochs": float,
    "samples": float,
    "total_samples": float,
    "samples_per_s": float,
    "noise_scale": float,
}
"""Names that are no metric but a figure of `Progress`, taken as the cell says them."""


class Reporter:
    """Collects metrics and sends a `Progress` at most every `INTERVAL_S` seconds."""

    def __init__(self) -> None:
        self.unsent: dict[str, deque[Any]] = {}
        """The values since the last sending."""
        self.metrics: dict[str, float] = {}
        """As they were last sent."""
        self.exact: dict[str, float] = {}
        self.marks: deque[tuple[float, int, int]] = deque()
        self.sent_at = 0.0
        self.pending = False
        self.calls = 0

    def report(self, metrics: dict[str, Any]) -> Progress | None:
        """Take metrics; the progress that was sent, or None when it is not yet time."""
        self.calls += 1
        for name, value in metrics.items():
            if name in EXACT:
                self.exact[name] = EXACT[name](value)
                continue
            self.unsent.setdefault(name, deque(maxlen=AVERAGED)).append(_detached(value))
        if context.warming_up:
            return None
        now = time.monotonic()
        self._mark(now)
        self.pending = True
        return self.flush(now) if now - self.sent_at >= INTERVAL_S else None

    def flush(self, now: float | None = None) -> Progress | None:
        """Send what was not sent yet."""
        if not self.pending:
            return None
        self.pending = False
        self.sent_at = time.monotonic() if now is None else now
        progress = msgspec.structs.replace(self._progress(), **self.exact)
        if session.current is not None and in_job()[0] == 0:
            session.current.report(progress)
        return progress

    def new_group(self) -> None:
        """Another group has another speed, and its first report is sent at once; what is known of the model stays."""
        self.marks.clear()
        self.sent_at = 0.0

    def forget(self) -> None:
        """Begin anew: a rollback makes what was reported stale."""
        self.marks.clear()
        self.unsent.clear()
        self.metrics.clear()
        self.exact.clear()
        self.pending = False

    def _mark(self, now: float) -> None:
        samples = context.state.samples if context.state is not None else 0
        if self.marks and (self.marks[-1][2] != context.size or samples < self.marks[-1][1]):
            self.marks.clear()
        self.marks.append((now, samples, context.size))
        while len(self.marks) > 2 and now - self.marks[0][0] > WINDOW_S:
            self.marks.popleft()

    def _progress(self) -> Progress:
        self.metrics |= {name: mean for name, values in self.unsent.items() if (mean := _mean(values)) is not None}
        self.unsent.clear()
        metrics = dict(self.metrics)
        state = context.state
        if state is None:
            return Progress(step=self.calls, world_size=in_job()[1], metrics=metrics)
        per_epoch = sum(context.passes)
        whole = context.epochs is not None and per_epoch > 0
        in_epoch = state.seen / per_epoch if per_epoch else 0.0
        return Progress(
            step=state.step,
            epoch=float(state.epoch) + min(in_epoch, 1.0),
            epochs=None if context.epochs is None else float(context.epochs),
            samples=float(state.samples),
            total_samples=float((context.epochs or 0) * per_epoch) if whole else None,
            samples_per_s=self._speed(),
            world_size=context.size,
            metrics=metrics,
        )

    def _speed(self) -> float | None:
        if len(self.marks) < 2:
            return None
        (first, before, _), (last, after, _) = self.marks[0], self.marks[-1]
        return (after - before) / (last - first) if last > first and after > before else None


def report(**metrics: Any) -> Progress | None:
    """Report how the training goes: `training.report(loss=loss, accuracy=accuracy)`, in every step if you like.

    Step, epoch, samples, samples/s and world size are added. What is shown is what rank 0 reported; of values that come
    faster than four times a second, their mean.

    Args:
        metrics: Numbers by name: of Python or NumPy, or tensors with one element, which are read only when a report is
            sent. One that is not finite is shown as that. A loop of your own sets these by their names: `step`,
            `epoch`, `epochs`, `samples`, `total_samples`, `samples_per_s` (samples per second over all workers),
            `noise_scale` (samples).

    Returns:
        What was sent; None when the last one was sent less than a quarter of a second ago.
    """
    return reporter.report(metrics)


reporter = Reporter()


def _detached(value: Any) -> Any:
    detach = getattr(value, "detach", None)
    return detach() if callable(detach) else value


def _mean(values: Iterable[Any]) -> float | None:
    """The mean of those that are numbers."""
    numbers = []
    for value in values:
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            numbers.append(float(value))
    return sum(numbers) / len(numbers) if numbers else None
