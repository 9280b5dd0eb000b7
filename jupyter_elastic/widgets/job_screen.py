"""What the screens of one job show: the typed view model that `widgets/model.py` folds and every view only draws.

Pure: knows the vocabulary only. The TypeScript twin is `frontend/src/screens.ts`; a test holds the two together.
"""

from __future__ import annotations

from msgspec import Struct


class _Screen(Struct, frozen=True, kw_only=True):
    pass


class SizePoint(_Screen, frozen=True, kw_only=True):
    """From `at` on the job held this many slots, because of `reason`."""

    at: float
    slots: int
    reason: str
    pause_s: float
    """How long the training stood still for the change; 0 until it is known."""


class Curve(_Screen, frozen=True, kw_only=True):
    """A metric over steps, thinned to a bounded number of points. A value that isn't finite travels as None."""

    name: str
    points: list[tuple[float, float | None]]


class OutputTab(_Screen, frozen=True, kw_only=True):
    """The tail of what a rank printed, with carriage returns carried out. `bytes` is the whole file's size."""

    rank: int
    text: str
    bytes: int
    path: str


class JobScreen(_Screen, frozen=True, kw_only=True):
    """One job's page. Times are seconds since the epoch, durations in seconds."""

    job: int
    name: str
    owner: str
    engine: str
    phase: str
    state: str
    """The phase in words: what it waits for, or what it does."""
    kind: str
    """What a slot is: `gpu` or `cpu`."""
    at: float
    min_slots: int
    max_slots: int
    held: int
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    fraction: float | None
    """Done, 0 to 1; None when the job doesn't say how much there is."""
    eta_s: float | None
    step: int | None
    epoch: float | None
    epochs: float | None
    samples_per_s: float | None
    world_size: int | None
    sizes: list[SizePoint]
    curves: list[Curve]
    traceback: str
    """The first failing rank's, or empty."""
    outputs: list[OutputTab]
    folder: str
