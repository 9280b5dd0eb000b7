"""Defines the timeline's screen: the pool's past and likely future, which pages draw and do not compute.

Pure. Times are seconds since the epoch. `scripts/screen_types.py` writes the pages' types from these structs.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from jupyter_elastic.client.human_times import human_range
from jupyter_elastic.types.texts import visible
from jupyter_elastic.views.pool_screen import SwitchRow

MONTH_S = 30 * 86_400.0
LEAST_S = 10.0
MAX_ROWS = 200
"""Maximum number of finished jobs that are listed at once."""

_Text = Annotated[str, Meta(max_length=200)]
_Time = Annotated[float, Meta(ge=0, le=1e11)]


class TimelineLook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A viewer's window and filters on the timeline."""

    at: _Time | None = None
    """The time between past and future; None: now, and the window moves with it."""
    past_s: Annotated[float, Meta(ge=LEAST_S, le=MONTH_S)] = 600.0
    ahead_s: Annotated[float, Meta(ge=0, le=MONTH_S)] = 300.0
    user: _Text = ""
    """Filter of finished jobs: this user's; the next two filter them too."""
    name: _Text = ""
    """Filter: the name contains this text."""
    state: _Text = ""
    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_ROWS)] = 25


class TimelineHost(Struct, frozen=True, kw_only=True):
    """A host, or several one below the other, and its rows: each is a slot."""

    name: str
    slots: list[str]
    gone: bool
    """True if the pool no longer has the host."""
    url: str = field(name="reach")
    """URL as in `HostBox`; empty for several hosts."""
    until: float | None
    out: str


class TimelineJob(Struct, frozen=True, kw_only=True):
    """A drawn job."""

    job: int
    name: str
    owner: str
    mine: bool
    state: str
    """A phase: `queued`, `running` and so on; at the end its outcome."""
    submitted_at: float
    ended_at: float | None
    starts: tuple[float, float] | None
    """Earliest and latest likely start; None if it has slots, or the start is not known."""
    ends: tuple[float, float] | None
    """Earliest and latest likely end."""


class Bar(Struct, frozen=True, kw_only=True):
    """A job on neighbouring rows, for as long as these stay the same."""

    job: int
    """0: `count` bars that are too short to be drawn one by one."""
    begin: float
    end: float | None
    """None while it goes on."""
    first: int
    """First row, counted over all hosts."""
    rows: int
    count: int = 1


class FairRow(Struct, frozen=True, kw_only=True):
    """A user's use over time."""

    user: str
    points: list[tuple[float, float, float]]
    """Time, slots used on average from then to the next point, and the fair share."""


class FinishedRow(Struct, frozen=True, kw_only=True):
    """A finished job."""

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
    """Maximum number of slots held at once."""


class TimelineScreen(Struct, frozen=True, kw_only=True):
    """The whole picture."""

    at: float
    begin: float
    end: float
    policy: str
    kind: str
    hosts: list[TimelineHost]
    jobs: list[TimelineJob]
    bars: list[Bar]
    future: list[Bar]
    """The most likely bars, in the same rows."""
    predicted_at: float | None
    """Time of the prediction; None: there is none."""
    note: str
    """Reason why there is no prediction, or why it is incomplete."""
    switches: list[SwitchRow]
    fairness: list[FairRow]
    finished: list[FinishedRow]
    total_finished: int
    """Number of finished jobs in the window that match the filters; `finished` may be a part of them."""
    users: list[str]
    """Owners of the window's jobs."""
    loaded: bool
    """True once the past has arrived."""


class TimelinePicture(Struct, frozen=True, kw_only=True):
    """One policy's future from now on, as drawn by the what-if."""

    policy: str
    at: float
    end: float
    hosts: list[TimelineHost]
    bars: list[Bar]


def job_lines(screen: TimelineScreen) -> list[str]:
    """Return a line of text for each unfinished job: its likely start and end."""
    lines = []
    for job in screen.jobs:
        if job.ended_at is not None:
            continue
        parts = [job.state]
        if job.starts is not None:
            parts.append(f"starts in {human_range(job.starts[0] - screen.at, job.starts[1] - screen.at)}")
        if job.ends is not None:
            parts.append(f"ends in {human_range(job.ends[0] - screen.at, job.ends[1] - screen.at)}")
        lines.append(f"job {job.job} {visible(job.name)} ({visible(job.owner)}): {', '.join(parts)}")
    return lines
