"""Defines the pool's screens: all values that panel, widget and terminal draw, so that none of them computes any.

Pure: knows the vocabulary only. `scripts/screen_types.py` writes the pages' types from these structs.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

MAX_WINDOW = 500
"""Maximum number of jobs in one screen; the page requests others when a person scrolls to them."""


class SlotBox(Struct, frozen=True, kw_only=True):
    """A slot: one square of the map of the pool."""

    slot: str
    state: Literal["free", "leased", "draining", "out"]
    job: int | None
    owner: str
    reason: str
    for_servers: bool
    """True for a CPU slot of a pool of GPUs, which only parameter servers may use."""


class HostBox(Struct, frozen=True, kw_only=True):
    """A host: one row of the map of the pool."""

    name: str
    slots: list[SlotBox]
    url: str = field(name="reach")
    """URL of the host, such as `ssh://lab2`; empty for the machine on which the daemon runs."""
    until: float | None
    """Time at which the host ends, in seconds since the epoch; None if not known."""
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
    """Position in the queue, from 1: by likely start, or by time of submission if that is unknown; None once the job
    has slots."""
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
    """A text about an action of the policy; `PoolScreen.notes` has the newest first."""

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
    """A shadow: a policy whose plans are compared with the active one's and not carried out.

    Times are seconds since the epoch.
    """

    policy: str
    options: dict[str, Any]
    cell: bool
    """True if the policy's text is from a cell of this notebook."""
    since: float
    asked: int = 0
    differed: int = 0
    """Number of times, of those `asked`, that the shadow would have acted differently."""
    differs_since: float | None = None
    """Time since which the shadow has differed without a break; None while it agrees."""
    jobs: int = 0
    """Number of unfinished jobs when the shadow was last asked."""
    differences: list[ShadowDifference] = []
    """The first differences, of `total_differences` in all."""
    total_differences: int = 0
    problem: str = ""
    """Reason why the shadow could not be asked, or why its plan could not be carried out; else empty."""


class PoolScreen(Struct, frozen=True, kw_only=True):
    """The pool's whole screen."""

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
    """Unfinished jobs: those with slots, then those in the queue, each part ordered by (submitted_at, job)."""
    total_jobs: int
    """Number of all unfinished jobs; `jobs` may hold only a part of them."""
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
