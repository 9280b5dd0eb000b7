"""Defines the pool's screens: the typed view model that panel, widget and terminal draw and do not compute.

Pure: knows the vocabulary only. `scripts/screen_types.py` writes the pages' types from these structs.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

MAX_WINDOW = 500
"""Maximum number of jobs that are sent at once; scrolling requests the rest."""


class SlotBox(Struct, frozen=True, kw_only=True):
    """One square of the map."""

    slot: str
    state: Literal["free", "leased", "draining", "out"]
    job: int | None
    owner: str
    reason: str
    for_servers: bool
    """True for a CPU slot beside GPUs, for parameter servers alone."""


class HostBox(Struct, frozen=True, kw_only=True):
    """One row of the map."""

    name: str
    slots: list[SlotBox]
    url: str = field(name="reach")
    """URL of the host, such as `ssh://lab2`; empty: the pool's own machine."""
    until: float | None
    """End of the host, in seconds since the epoch; None: not known."""
    out: str
    """Reason why slots of the host are out, or why the viewer can't reach it; else empty."""


class JobRow(Struct, frozen=True, kw_only=True):
    """One line of the queue. Times are seconds since the epoch."""

    job: int
    name: str
    owner: str
    mine: bool
    """True if the viewer may change the job."""
    phase: str
    position: int | None
    """Position in the queue, from 1, in order of likely start, else of submission; None once it has slots."""
    held: int
    min_slots: int
    max_slots: int
    submitted_at: float
    started_at: float | None
    fraction: float | None
    """Fraction of the training done, 0 to 1, if the job reports a total."""
    wait_s: tuple[float, float] | None
    """Earliest and latest likely start, in seconds from now; None when not known."""
    reason: str


class ShareRow(Struct, frozen=True, kw_only=True):
    """A user's part of the pool: slots held, and an equal share among the users who want slots."""

    user: str
    held: int
    entitled: float
    queued: int
    slot_seconds: float
    """Slot-seconds held within the shown history."""


class HistoryPoint(Struct, frozen=True, kw_only=True):
    """The pool's state from `at` until the next point."""

    at: float
    leased: dict[str, int]
    draining: int
    capacity: int
    queued: int


class SwitchRow(Struct, frozen=True, kw_only=True):
    """A switch of the policy."""

    at: float
    by: str
    name: str
    previous: str
    reason: str


class NoteRow(Struct, frozen=True, kw_only=True):
    """An action of the policy; lists have the newest first."""

    at: float
    job: int | None
    text: str


class ShadowDifference(Struct, frozen=True, kw_only=True):
    """A job that a shadow would give another number of workers than it holds."""

    job: int
    name: str
    owner: str
    holds: int
    shadow: int


class ShadowRow(Struct, frozen=True, kw_only=True):
    """A policy that is asked beside the active one, and not obeyed. Times are seconds since the epoch."""

    policy: str
    options: dict[str, Any]
    cell: bool
    """True if the policy's text is from a cell of this notebook."""
    since: float
    asked: int = 0
    differed: int = 0
    """Number of times that the policy was asked and would have acted differently."""
    differs_since: float | None = None
    """Time since which it has differed without a break; None while it agrees."""
    jobs: int = 0
    """Unfinished jobs when it was last asked."""
    differences: list[ShadowDifference] = []
    """The first of `total_differences`."""
    total_differences: int = 0
    problem: str = ""
    """Reason why it could not be asked, or why its plan could not be followed."""


class PoolScreen(Struct, frozen=True, kw_only=True):
    """The whole page."""

    seq: int
    at: float
    kind: str
    """`gpu`, or `cpu` if slots are CPU cores."""
    user: str
    problem: str
    """Text on why the pool takes no jobs now, and what to do; empty while it takes jobs."""
    maintenance: str
    """Text on who put the pool into maintenance, and why; empty without maintenance."""
    policy: str
    policy_options: dict[str, Any]
    hosts: list[HostBox]
    jobs: list[JobRow]
    """Unfinished jobs: those with slots first, then the queue, each by (submitted_at, job)."""
    total_jobs: int
    """Number of all unfinished jobs; `jobs` may be a window of them."""
    shares: list[ShareRow]
    history: list[HistoryPoint]
    switches: list[SwitchRow]
    notes: list[NoteRow]
    shadows: list[ShadowRow]


class EndedRow(Struct, frozen=True, kw_only=True):
    """An ended job of the viewer. Times are seconds since the epoch."""

    job: int
    name: str
    outcome: str
    started_at: float | None
    ended_at: float


class PoolStatus(Struct, frozen=True, kw_only=True):
    """The pool in a few figures, for a status bar, and the viewer's jobs that ended lately."""

    kind: str
    free: int
    capacity: int
    running: int
    """Jobs of the viewer that hold slots."""
    waiting: int
    ended: list[EndedRow]
