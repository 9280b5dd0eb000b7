"""Reports the progress of a training, called often and sent seldom: `training.report(loss=...)`.

Knows no framework: a value is anything that becomes a float. Values in host memory are read at once, others only when
the training's own thread sends a report, so that a step never waits for its GPU. When no report follows one that came
too soon, another thread sends it. That thread never calls a GPU (it would spoil a CUDA graph that is being captured,
and could overtake another stream): metrics on a GPU stay as they were last sent.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable
from numbers import Real
from typing import Any

import msgspec

from jupyter_elastic.training import link
from jupyter_elastic.training.context import context
from jupyter_elastic.training.ranks import in_job
from jupyter_elastic.types import MAX_METRICS, Progress
from jupyter_elastic.types.texts import has_control

INTERVAL_S = 0.25
"""The one limit on the way of a metric to the journal and to every view: no more than a person can follow. A report
that comes sooner goes out with the next one, or by itself when none has followed for that time."""
AVERAGED = 20
"""Maximum number of values since the last sending, the newest, that are averaged."""
LONGEST_NAME = 200
"""Maximum characters of a metric's name."""
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
"""Names that are no metric but a figure of `Progress`, taken from the cell as they are."""


class Reporter:
    """Collects metrics and sends a `Progress` at most every `INTERVAL_S` seconds.

    The training's thread calls `report` and `flush`, any other thread `send_held`.
    """

    def __init__(self) -> None:
        self.unsent: dict[str, deque[Any]] = {}
        """The values since the last sending."""
        self.latest: dict[str, Any] = {}
        """The last value of each metric in this epoch of `batches(..., epochs=...)`."""
        self.metrics: dict[str, float] = {}
        """The metrics as last sent."""
        self.names: set[str] = set()
        """Names of the metrics that are shown."""
        self.told: set[str] = set()
        """Reasons, already reported, why others are not shown."""
        self.exact: dict[str, float] = {}
        self.marks: deque[tuple[float, int, int]] = deque()
        self.sent_at = 0.0
        """Time when `report` or `flush` last sent something."""
        self.reported_at = 0.0
        self.held: Progress | None = None
        """Progress of the training at its last report, without metrics; None when that was sent."""
        self.calls = 0
        self.lock = threading.Lock()

    def report(self, metrics: dict[str, Any]) -> Progress | None:
        """Take metrics; return the progress that was sent, or None when it is not yet time."""
        with self.lock:
            self.calls += 1
            for name, value in metrics.items():
                if name in EXACT:
                    self.exact[name] = EXACT[name](value)
                elif name in self.names or self._takes(name):
                    self.latest[name] = _kept(value)
                    self.unsent.setdefault(name, deque(maxlen=AVERAGED)).append(self.latest[name])
            if context.warming_up:
                return None
            self.reported_at = time.monotonic()
            self._mark(self.reported_at)
            self.held = self._progress()
            return self._send() if self.reported_at - self.sent_at >= INTERVAL_S else None

    def _takes(self, name: str) -> bool:
        """Return True if a new metric can be shown; the pool would refuse a whole report with one too many."""
        if len(name) > LONGEST_NAME:
            why = f"the name of a metric has at most {LONGEST_NAME} characters"
        elif has_control(name):
            why = "the name of a metric holds no control characters"
        elif len(self.names) >= MAX_METRICS:
            why = f"a job has at most {MAX_METRICS} metrics; the first ones are shown"
        else:
            self.names.add(name)
            return True
        if why not in self.told:
            self.told.add(why)
            warnings.warn(f"{name[:40]!r} is not shown: {why}", stacklevel=4)
        return False

    def flush(self) -> Progress | None:
        """Send unsent metrics, with the training's present progress."""
        with self.lock:
            if self.held is None:
                return None
            self.reported_at = time.monotonic()
            self.held = self._progress()
            return self._send()

    def send_held(self) -> None:
        """Send unsent progress as it was reported, with those metrics that need not be read any more."""
        with self.lock:
            if self.held is not None:
                self._send(late=True)

    def _send(self, *, late: bool = False) -> Progress:
        assert self.held is not None
        for name, values in list(self.unsent.items()):
            if late and not all(isinstance(value, float) for value in values):
                continue
            if (mean := _mean(self.unsent.pop(name))) is not None:
                self.metrics[name] = mean
        progress, self.held = msgspec.structs.replace(self.held, metrics=dict(self.metrics)), None
        if not late:
            self.sent_at = self.reported_at
        current = link.current
        if current is not None and (late or in_job()[0] == 0):
            current.report(progress)
        return progress

    def new_group(self) -> None:
        """Forget the speed, which another group changes, and send its first report at once; metrics stay."""
        with self.lock:
            self.marks.clear()
            self.sent_at = 0.0

    def forget(self) -> None:
        """Begin anew: a rollback makes earlier reports stale."""
        with self.lock:
            self.marks.clear()
            self.unsent.clear()
            self.metrics.clear()
            self.names.clear()
            self.exact.clear()
            self.held = None

    def _mark(self, now: float) -> None:
        samples = context.state.samples if context.state is not None else 0
        if self.marks and (self.marks[-1][2] != context.size or samples < self.marks[-1][1]):
            self.marks.clear()
        self.marks.append((now, samples, context.size))
        while len(self.marks) > 2 and now - self.marks[0][0] > WINDOW_S:
            self.marks.popleft()

    def _progress(self) -> Progress:
        state = context.state
        if state is None:
            progress = Progress(step=self.calls, world_size=in_job()[1])
        else:
            per_epoch = sum(context.passes)
            whole = context.epochs is not None and per_epoch > 0
            in_epoch = state.seen / per_epoch if per_epoch else 0.0
            progress = Progress(
                step=state.step,
                epoch=float(state.epoch) + min(in_epoch, 1.0),
                epochs=None if context.epochs is None else float(context.epochs),
                samples=float(state.samples),
                total_samples=float((context.epochs or 0) * per_epoch) if whole else None,
                samples_per_s=self._speed(),
                world_size=context.size,
            )
        number = 1 if link.current is None else link.current.training
        return msgspec.structs.replace(progress, training=max(number, 1), **self.exact)

    def _speed(self) -> float | None:
        if len(self.marks) < 2:
            return None
        (first, before, _), (last, after, _) = self.marks[0], self.marks[-1]
        return (after - before) / (last - first) if last > first and after > before else None


def report(**metrics: Any) -> Progress | None:
    """Report metrics of the training: `training.report(loss=loss, accuracy=accuracy)`, in every step if you like.

    Step, epoch, samples, samples/s and world size are added. Views show rank 0's reports; of values that come faster
    than four times a second, their mean.

    Args:
        metrics: Numbers by name: of Python or NumPy, or tensors with one element, which are read only when a report is
            sent. A number that is not finite is shown as such. A loop of your own sets these by their names: `step`,
            `epoch`, `epochs`, `samples`, `total_samples`, `samples_per_s` (samples per second over all workers),
            `noise_scale` (samples).

    Returns:
        The progress that was sent; None, and sent later, if the last one was sent less than a quarter of a second ago.
    """
    sent = reporter.report(metrics)
    if reporter.held is not None and link.current is not None and in_job()[0] == 0:
        late_sender.wake()
    return sent


class LateSender:
    """A thread that sends what `reporter` holds back, once no report has come for `INTERVAL_S`."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Wake the thread, as a report is held back."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="elastic-report", daemon=True)
            self._thread.start()
        self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            pause_s = reporter.reported_at + INTERVAL_S - time.monotonic()
            if pause_s > 0:
                time.sleep(pause_s)
            else:
                self._wanted.clear()
                reporter.send_held()


reporter = Reporter()
late_sender = LateSender()


def _after_fork() -> None:
    """Reset a process that the cell forks: it has no such thread, and a thread that it lacks may hold the lock."""
    global late_sender
    reporter.lock, late_sender = threading.Lock(), LateSender()


os.register_at_fork(after_in_child=_after_fork)


def _kept(value: Any) -> Any:
    """Return the value as a number if it lies in host memory; any other as it is, without its computation graph."""
    detach = getattr(value, "detach", None)
    value = detach() if callable(detach) else value
    if isinstance(value, Real) or str(getattr(value, "device", "")).endswith(("cpu", "CPU:0")):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return float(value)
    return value


def _mean(values: Iterable[Any]) -> float | None:
    """Return the mean of the values that are numbers."""
    numbers = []
    for value in values:
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            numbers.append(float(value))
    return sum(numbers) / len(numbers) if numbers else None
