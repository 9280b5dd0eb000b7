"""What the timeline shows: the pool's past and its likely future, which page and terminal draw and do not compute.

Pure. Times are seconds since the epoch. The TypeScript twin of these structs is `frontend/src/screens.ts`; a test holds
the two together.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from jupyter_elastic.widgets.pool_screen import SwitchRow

MONTH_S = 30 * 86_400.0
LEAST_S = 10.0
MAX_ROWS = 200
"""Finished jobs that are listed at once at most."""

_Text = Annotated[str, Meta(max_length=200)]
_Time = Annotated[float, Meta(ge=0, le=1e11)]


class TimelineLook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody wants to see of the timeline."""

    at: _Time | None = None
    """The time between past and future; None: now, and the window goes on with it."""
    past_s: Annotated[float, Meta(ge=LEAST_S, le=MONTH_S)] = 600.0
    ahead_s: Annotated[float, Meta(ge=0, le=MONTH_S)] = 300.0
    user: _Text = ""
    """Of the finished jobs only those of this user; likewise the next ones."""
    name: _Text = ""
    """Only those whose name holds this."""
    state: _Text = ""
    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_ROWS)] = 25


class TimelineHost(Struct, frozen=True, kw_only=True):
    """A host, or several one below the other, and its rows: each is a slot."""

    name: str
    slots: list[str]
    gone: bool
    """The pool no longer has it."""
    reach: str
    """As in `HostBox`; of several hosts nothing is said."""
    until: float | None
    out: str


class TimelineJob(Struct, frozen=True, kw_only=True):
    """A job that is drawn."""

    job: int
    name: str
    owner: str
    mine: bool
    state: str
    """A phase: `queued`, `running` and so on; at the end its outcome."""
    submitted_at: float
    ended_at: float | None
    starts: tuple[float, float] | None
    """From when to when it is likely to start; None where it has slots, or nobody can tell."""
    ends: tuple[float, float] | None
    """The same of its end."""


class Bar(Struct, frozen=True, kw_only=True):
    """A job on some rows one below the other, for as long as these stay the same."""

    job: int
    """0: `count` bars that are too short to be drawn one by one."""
    begin: float
    end: float | None
    """None: it goes on."""
    first: int
    """The first of its rows, counted over all hosts."""
    rows: int
    count: int = 1


class FairRow(Struct, frozen=True, kw_only=True):
    """A user over time."""

    user: str
    points: list[tuple[float, float, float]]
    """Time, slots used on average from then to the next point, and the fair share."""


class FinishedRow(Struct, frozen=True, kw_only=True):
    """A job that is over."""

    job: int
    name: str
    owner: str
    mine: bool
    outcome: str
    reason: str
    submitted_at: float
    started_at: float | None
    ended_at: float
    most: int
    """The most slots that it held at once."""


class TimelineScreen(Struct, frozen=True, kw_only=True):
    """The whole picture."""

    at: float
    """Now."""
    begin: float
    end: float
    policy: str
    kind: str
    hosts: list[TimelineHost]
    jobs: list[TimelineJob]
    bars: list[Bar]
    future: list[Bar]
    """What will most likely be, in the same rows."""
    predicted_at: float | None
    """When that was found out; None: it was not."""
    note: str
    """Why there is no prediction, or why it is incomplete."""
    switches: list[SwitchRow]
    fairness: list[FairRow]
    finished: list[FinishedRow]
    total_finished: int
    """Of the window and as filtered; `finished` may be a part of them."""
    users: list[str]
    """Whose jobs there are in the window."""
    loaded: bool
    """Whether the past has come."""


class TimelinePicture(Struct, frozen=True, kw_only=True):
    """One policy's future from now on, as the what-if draws it."""

    policy: str
    at: float
    end: float
    hosts: list[TimelineHost]
    bars: list[Bar]
