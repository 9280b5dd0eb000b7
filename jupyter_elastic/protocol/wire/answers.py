"""Defines the daemon's answers to requests. Knows types; must not know which request an answer belongs to. Pure."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from jupyter_elastic import types
from jupyter_elastic.types import Event, HostInfo, JobId, JobInfo, PolicyInfo, SlotInfo, View


class _Struct(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class Answer(_Struct, tag=True, frozen=True, kw_only=True):
    """The base of answers."""


class Welcome(Answer, frozen=True, kw_only=True):
    """The pool's description for a new connection."""

    version: int
    package: str
    """Version of the daemon's package."""
    user: str
    """The user's name, by the socket."""
    pool: str
    seq: int
    policy: str
    started_at: float
    pid: int = 0
    administers: bool = False
    """True if the user may change what belongs to others."""
    log_format: Literal["text", "json"] = "text"
    """Log format of the daemon, and of agents without an option for it."""
    shared: bool = False
    """True if other users use the pool too: then its other hosts are its administrator's to name."""


class Done(Answer, frozen=True, kw_only=True):
    """The request was carried out, and is on disk if it changed anything."""


class Submitted(Answer, frozen=True, kw_only=True):
    """The number of the queued job."""

    job: JobId


class Cancelled(Answer, frozen=True, kw_only=True):
    """The jobs that are to end."""

    jobs: tuple[JobId, ...]


class Jobs(Answer, frozen=True, kw_only=True):
    """Jobs, oldest first."""

    jobs: tuple[JobInfo, ...]
    seq: int


class Hosts(Answer, frozen=True, kw_only=True):
    """Every slot of the pool."""

    slots: tuple[SlotInfo, ...]
    kind: str = "cpu"
    seq: int = 0
    drains: tuple[types.Drain, ...] = ()
    """Hosts and slots that administrators keep from new work."""
    others: tuple[HostInfo, ...] = ()
    """Hosts other than the daemon's machine."""


class Policies(Answer, frozen=True, kw_only=True):
    """Installed policies; one is active."""

    policies: tuple[PolicyInfo, ...]
    refusal: str = ""
    """Reason why the user may not switch, and whom to ask; empty if allowed."""


class PoolView(Answer, frozen=True, kw_only=True):
    """The view, and the active policy with its options."""

    view: View
    policy: str
    options: dict[str, Any] = {}


class Demand(Answer, frozen=True, kw_only=True):
    """Slots that the policy would give away beyond the existing ones; at most `at_most`."""

    slots: int


class Explanation(Answer, frozen=True, kw_only=True):
    """A few lines for a person."""

    text: str
    until: str = ""
    """The end of `text`, on when the job can start; empty if waiting alone does not help."""


class Following(Answer, frozen=True, kw_only=True):
    """Events after `seq` follow."""

    seq: int


class LeasesRenewed(Answer, frozen=True, kw_only=True):
    """The attempts that still hold slots. Slots of the others may belong to another job by now."""

    held: tuple[tuple[JobId, int], ...] = ()
    lease_s: float = 0.0
    """Term of new leases in seconds; 0: unlimited. An attempt keeps that of its `Launch`."""
    warm: int = 0
    """Maximum number of warm parents that a user may keep on this pool; 0: unlimited."""
    sessions: int = 0
    """Maximum number of the user's sessions at a time; 0: unlimited."""
    parked_mb: int = 0
    """Maximum megabytes of all these sessions' workers between cells; 0: a quarter of the machine's."""


class UsageRow(_Struct, frozen=True, kw_only=True):
    """A user's usage on a day."""

    day: str
    """UTC, as 2026-11-23."""
    user: str
    group: str = ""
    slot_s: float
    """Slots leased to the user's jobs, times seconds."""
    borrowed_s: float = 0.0
    """The part of `slot_s` beyond the user's fair share or quota."""
    lent_s: float = 0.0
    """Slot-seconds of this user's share that others held; of a group, those that no member held."""


class Used(Answer, frozen=True, kw_only=True):
    """Usage by day, user and group; slots still held count until `until` (seconds since the epoch)."""

    rows: tuple[UsageRow, ...]
    until: float


class KeyAdmitted(Answer, frozen=True, kw_only=True):
    """The key may connect to `endpoint` until `expires_at`; the daemon proves its identity by `server_key`."""

    user: str
    """The pool's name of the user."""
    endpoint: str
    """The daemon's listening address; `0.0.0.0` if that is any address."""
    server_key: str
    expires_at: float


MetricKind: TypeAlias = Literal["gauge", "counter", "histogram"]


class MetricSample(_Struct, frozen=True, kw_only=True):
    """A figure; of a histogram the sum of its values."""

    labels: tuple[str, ...] = ()
    value: float
    buckets: tuple[tuple[str, int], ...] = ()
    """For a histogram: upper bounds in increasing order, each with the number of values up to it."""


class MetricFamily(_Struct, frozen=True, kw_only=True):
    """Figures of one name, after Prometheus' conventions."""

    name: str
    kind: MetricKind
    text: str
    """Description of the figures."""
    labels: tuple[str, ...] = ()
    samples: tuple[MetricSample, ...]


class Metrics(Answer, frozen=True, kw_only=True):
    """All figures, and the problem that keeps the pool from taking jobs; empty without one."""

    families: tuple[MetricFamily, ...]
    problem: str = ""


class Problem(Answer, frozen=True, kw_only=True):
    """The reason why the journal can't be written now; empty when it can."""

    text: str = ""


class AuditRow(_Struct, frozen=True, kw_only=True):
    """A decision, or refusals of one kind."""

    seq: int
    at: float
    by: str
    """The user who decided; `daemon`: the policy, or time."""
    user: str = ""
    """The user whom it affects."""
    job: JobId | None = None
    what: str
    reason: str = ""


class Audited(Answer, frozen=True, kw_only=True):
    """Decisions and refusals, oldest first."""

    rows: tuple[AuditRow, ...]
    more: bool = False
    """True if older ones were left out."""


class Past(Answer, frozen=True, kw_only=True):
    """Events in order of `seq`: of jobs start, slots and end, and of the pool its hosts, policies and shares.

    Events that the receiver may not see are left out.
    """

    events: tuple[Event, ...]
    last: int
    """All events of these kinds up to this `seq` were sent."""
    more: bool = False
    """True if there are later ones: request those `after` `last`."""


class Refused(Answer, frozen=True, kw_only=True):
    """An error; `code` is that of one of `errors`."""

    code: str
    message: str


AnyAnswer: TypeAlias = (
    Welcome
    | Done
    | Submitted
    | Cancelled
    | Jobs
    | Hosts
    | Policies
    | PoolView
    | Demand
    | Explanation
    | Following
    | LeasesRenewed
    | Used
    | Audited
    | Past
    | Metrics
    | Problem
    | KeyAdmitted
    | Refused
)
