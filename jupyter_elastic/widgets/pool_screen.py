"""What the pool's screens show: the typed view model that panel, widget and terminal draw and do not compute.

Pure: knows the vocabulary only. The TypeScript twin of these structs is `frontend/src/screens.ts`; a test holds the two
together.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

MAX_WINDOW = 500
"""Jobs that are sent at once at most: the rest is asked for when somebody scrolls."""


class SlotBox(Struct, frozen=True, kw_only=True):
    """One square of the map."""

    slot: str
    state: Literal["free", "leased", "draining", "out"]
    job: int | None
    owner: str
    reason: str
    for_servers: bool
    """Whether it is a CPU's beside GPUs, for parameter servers alone."""


class HostBox(Struct, frozen=True, kw_only=True):
    """One row of the map."""

    name: str
    slots: list[SlotBox]
    reach: str
    """The way there, such as `ssh://lab2`; empty: it is the pool's own machine."""
    until: float | None
    """When it goes, in seconds since the epoch; None: nobody knows."""
    out: str
    """Why slots of it are out, or why who looks can't get there; empty: neither is so."""


class JobRow(Struct, frozen=True, kw_only=True):
    """One line of the queue. Times are seconds since the epoch."""

    job: int
    name: str
    owner: str
    mine: bool
    """Whether who looks may change it."""
    phase: str
    position: int | None
    """Place in the queue, from 1, in order of likely start, else of submission; None once it has slots."""
    held: int
    min_slots: int
    max_slots: int
    submitted_at: float
    started_at: float | None
    fraction: float | None
    """Done of the training, 0 to 1, where the job says how much there is."""
    wait_s: tuple[float, float] | None
    """From when to when it is likely to start, seconds from now; None when nobody can tell."""
    reason: str


class ShareRow(Struct, frozen=True, kw_only=True):
    """A user's part of the pool: what they hold and what an equal share among those who want slots would be."""

    user: str
    held: int
    entitled: float
    queued: int
    slot_seconds: float
    """Held within the history that is shown."""


class HistoryPoint(Struct, frozen=True, kw_only=True):
    """From `at` on, until the next point."""

    at: float
    leased: dict[str, int]
    """Leased slots by owner."""
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
    """What the policy did, newest first."""

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
    """A policy that is asked beside the one that decides, and not obeyed. Times are seconds since the epoch."""

    policy: str
    options: dict[str, Any]
    cell: bool
    """Its text is from a cell of this notebook."""
    since: float
    """Asked from then on."""
    asked: int = 0
    differed: int = 0
    """So often of the times that it was asked it would have done something else."""
    differs_since: float | None = None
    """Since when it has differed without a break; None while it agrees."""
    jobs: int = 0
    """Unfinished jobs when it was asked last."""
    differences: list[ShadowDifference] = []
    """The first of them."""
    total_differences: int = 0
    problem: str = ""
    """Why it could not be asked, or why its plan could not be followed."""


class PoolScreen(Struct, frozen=True, kw_only=True):
    """The whole page."""

    seq: int
    at: float
    kind: str
    """`gpu`, or `cpu` where slots are CPU cores."""
    user: str
    maintenance: str
    """Who has put the pool into maintenance, and why; empty when nobody has."""
    policy: str
    policy_options: dict[str, Any]
    hosts: list[HostBox]
    jobs: list[JobRow]
    """Unfinished jobs: those with slots first, then the queue, each by (submitted_at, job)."""
    total_jobs: int
    """Unfinished in all; `jobs` may be a window of them."""
    shares: list[ShareRow]
    history: list[HistoryPoint]
    switches: list[SwitchRow]
    notes: list[NoteRow]
    shadows: list[ShadowRow]


class EndedRow(Struct, frozen=True, kw_only=True):
    """A job of who looks that has ended. Times are seconds since the epoch."""

    job: int
    name: str
    outcome: str
    started_at: float | None
    ended_at: float


class PoolStatus(Struct, frozen=True, kw_only=True):
    """The pool in a few figures, for a status bar, and what of one's own has ended of late."""

    kind: str
    free: int
    capacity: int
    running: int
    """Jobs of who looks that hold slots."""
    waiting: int
    ended: list[EndedRow]
    """Oldest first."""
