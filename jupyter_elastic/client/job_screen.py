"""The content of a job's screen: the view models that each front end draws and does not compute.

Pure structs, from which `scripts/screen_types.py` writes the pages' types; must not know how events make them.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from jupyter_elastic.jobfiles.usage import ResourceUsage
from jupyter_elastic.types import JobId, SlotId

Tone = Literal["wait", "run", "change", "good", "bad", "off"]


class SizePoint(Struct, frozen=True, kw_only=True):
    """A size in a job's history: from `at` on it held `slots` slots, for `reason`; all workers paused for `pause_s`.

    If the number has not changed, `reason` names an event at that time: a worker died, or was replaced.
    """

    at: float
    slots: int
    reason: str = ""
    pause_s: float = 0.0


class Series(Struct, frozen=True, kw_only=True):
    """A metric's curve, without points that are no number; `last` is in words (`nan` too)."""

    name: str
    points: list[tuple[float, float]]
    last: str
    times: list[float] = []
    """Seconds from the job's submit to each point."""
    epochs: list[float] = []
    """Epoch of each point; empty unless each was reported with one."""


class SizeSpeed(Struct, frozen=True, kw_only=True):
    """The speed at a size."""

    workers: int
    servers: int
    measured: float | None
    """Samples/s, the median of the last reports at this size; None: it never trained at it."""
    predicted: float
    """Samples/s, by the fit."""


class SpeedFit(Struct, frozen=True, kw_only=True):
    """The sizes that a job may have or had, fewest servers first, then fewest workers."""

    sizes: list[SizeSpeed]
    form: str
    """Name of the fitted formula: `allreduce`, `sync` or `async`."""
    error: float
    """Error of the fit: the median relative error for a size when it is left out of the fit."""


class JobScreen(Struct, frozen=True, kw_only=True):
    """The content of a job's screen but for its output. Times are seconds since the epoch."""

    job: JobId
    name: str
    owner: str
    engine: str
    phase: str
    tone: Tone
    state: str
    """The state in words: `running on 2 GPUs`."""
    detail: str
    """A second line: why the job waits, the policy's reason, why it failed."""
    warning: str = ""
    """A line before `detail`: the progress that the job has lost."""
    unit: str
    """`GPU` or `CPU slot`."""
    slots: list[SlotId]
    min_slots: int
    max_slots: int
    sizes: list[SizePoint]
    fraction: float | None
    eta_s: float | None
    epoch: float | None
    epochs: float | None
    step: int | None
    training: int = 1
    """Number of the training in the cell, from 1, that the figures above and the curves belong to."""
    samples_per_s: float | None
    metrics: list[Series]
    use: ResourceUsage | None
    """The workers' current use of the machine; None while it is not known."""
    speeds: SpeedFit | None
    """Training speed at each size, measured and predicted; None before two sizes were measured."""
    usage: list[Series]
    """Resource use over time, by worker or GPU: a point's x are seconds since the job was submitted."""
    attempt: int
    preemptions: int
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    now: float
