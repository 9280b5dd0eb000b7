"""Defines the protocol on the daemon's socket, without I/O: the content of frames, and their limits.

One ZeroMQ message is one frame: msgpack of a `Request` (to the daemon) or a `Message` (from it). Knows types and
errors; must not know sockets. The socket (UNIX peer or CURVE key) identifies the sender, never the message.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from jupyter_elastic import types
from jupyter_elastic.types import (
    AgentOrigin,
    AnyEffect,
    Event,
    HostInfo,
    JobId,
    JobInfo,
    JobSpec,
    Name,
    PolicyInfo,
    PublicKey,
    Report,
    Right,
    SlotInfo,
    View,
)
from jupyter_elastic.types.errors import BadRequest, ProtocolError

VERSION = 9
MAX_FRAME = 4 * 1024 * 1024
"""Maximum bytes of a frame; a longer one is refused unread."""


class _Struct(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


# --- to the daemon ----------------------------------------------------------------------------------------------------


Kind: TypeAlias = Literal["user", "service"]
"""Kinds of accounts that a Hub vouches for."""


class Ask(_Struct, tag=True, frozen=True, kw_only=True):
    """The base of requests' contents."""


class Hello(Ask, frozen=True, kw_only=True):
    """First message: protocol version and role. From then on an agent gets orders. Answer: `Welcome`."""

    version: int
    role: str = "client"
    """`client` or `agent`."""
    place: AgentOrigin | None = None
    """Origin of the agent. A user's second agent with another origin is refused while the first one's processes run."""
    alone: bool = False
    """True if the agent has checked all jobs' folders and found no live driver."""
    take_over: bool = False
    """True if the user asserts that no process of the other agent runs any more."""


class SubmitJob(Ask, frozen=True, kw_only=True):
    """Queue a job; answered with `Submitted` once it is on disk. `key` makes a repeat harmless."""

    spec: JobSpec
    key: str


class CancelJob(Ask, frozen=True, kw_only=True):
    """End a job. Answer: `Done`."""

    job: JobId
    reason: str = ""


class CancelJobs(Ask, frozen=True, kw_only=True):
    """End these jobs, or all unfinished ones of `owner`: all, or none if one may not be ended. Answer: `Cancelled`."""

    jobs: tuple[JobId, ...] = ()
    owner: str = ""
    reason: str = ""


class ReleaseJob(Ask, frozen=True, kw_only=True):
    """Free the slots of a job whose owner's agent is gone, and queue it again. Administrators only. Answer: `Done`."""

    job: JobId
    reason: str = ""
    force: bool = False
    """Do so though the agent lives, or a lease runs: processes of the job may still run."""


class ResizeJob(Ask, frozen=True, kw_only=True):
    """Change a job's range, or another of its demands; unset fields keep their value (`Resize`). Answer: `Done`."""

    job: JobId
    min_slots: int | UnsetType = UNSET
    max_slots: int | UnsetType = UNSET
    sizes: tuple[int, ...] | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET
    deadline_at: float | UnsetType | None = UNSET


class BeginDrain(Ask, frozen=True, kw_only=True, tag="Drain"):
    """Keep a host, a slot or (`target` empty: maintenance) the pool from new work. Administrators. Answer: `Done`."""

    target: str = ""
    reason: str = ""
    grace_s: float | None = None
    """As in `DrainSlots`."""


class Undrain(Ask, frozen=True, kw_only=True):
    """End such a drain. Administrators only. Answer: `Done`."""

    target: str = ""


class ListJobs(Ask, frozen=True, kw_only=True):
    """List jobs, newest last. `all` adds ended ones (the newest `limit`); `owner`: only that user's. Answer: `Jobs`."""

    all: bool = False
    owner: str = ""
    job: JobId | None = None
    limit: int = 1000


class ListHosts(Ask, frozen=True, kw_only=True):
    """List the slots and other hosts. Answer: `Hosts`."""


class ListPolicies(Ask, frozen=True, kw_only=True):
    """List the installed policies. Answer: `Policies`."""


class ReadView(Ask, frozen=True, kw_only=True):
    """Read the view that a policy would get now, for a what-if outside the daemon. Answer: `PoolView`."""


class ReadDemand(Ask, frozen=True, kw_only=True):
    """Read how many more slots the queue could use (`scheduler/core/demand.py`). Answer: `Demand`."""

    at_most: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Maximum number of slots that could be added."""


class SwitchPolicy(Ask, frozen=True, kw_only=True):
    """Switch the policy. Answer: `Done`; for an unknown name or bad option the old one stays."""

    name: str
    options: dict[str, Any] = {}
    reason: str = ""
    source: str = ""


class ExplainJob(Ask, frozen=True, kw_only=True):
    """Explain why the job waits, or holds its slots. Answer: `Explanation`."""

    job: JobId


class Follow(Ask, frozen=True, kw_only=True):
    """Send every event after `since` and go on with new ones, as `EventsMessage`s. Answer: `Following`."""

    stream: int = 0
    """The client's number of the stream; a second Follow of the same number restarts it."""
    since: int = 0
    job: JobId | None = None
    """Only events of this job, and of the pool since it was submitted."""


class Unfollow(Ask, frozen=True, kw_only=True):
    """Send no more events of a stream. Answer: `Done`."""

    stream: int = 0


class ReportArrived(Ask, frozen=True, kw_only=True):
    """Deliver an agent's report. Its `by` is ignored: the socket identifies the sender. Answer: `Done`."""

    report: Report


class RenewLeases(Ask, frozen=True, kw_only=True):
    """Renew leases as an agent's heartbeat: these attempts, as (job, attempt), live. Answer: `LeasesRenewed`."""

    attempts: tuple[tuple[JobId, int], ...] = ()


class FailedHost(_Struct, frozen=True, kw_only=True):
    """A host to which an agent's user could not connect."""

    why: Annotated[str, Meta(max_length=4000)]
    again_at: float
    """Time of the next try, in seconds since the epoch."""


class ReportFailedHosts(Ask, frozen=True, kw_only=True):
    """Report, as an agent, all hosts of a shared pool that its user can't reach now. Answer: `Done`."""

    hosts: Annotated[dict[Annotated[str, Meta(max_length=200)], FailedHost], Meta(max_length=10_000)] = {}


class ReadUsage(Ask, frozen=True, kw_only=True):
    """Read the users' usage from the day of `since` on; administrators see all, others their own. Answer: `Used`."""

    since: float = 0.0


class RegisterKey(Ask, frozen=True, kw_only=True):
    """Let this key connect as a Hub's user or service for a term; administrators only. Answer: `KeyAdmitted`."""

    key: PublicKey
    user: Name
    kind: Kind = "user"
    rights: tuple[Right, ...] = ()
    groups: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
    term_s: float


class RevokeKey(Ask, frozen=True, kw_only=True):
    """Revoke this key, and end its connections; administrators only. Answer: `Done`."""

    key: PublicKey
    user: str = ""
    """Condition: the key belongs to this Hub user or service; empty: to anyone."""
    kind: Kind = "user"
    reason: str = ""


class ReadMetrics(Ask, frozen=True, kw_only=True):
    """Read the daemon's metrics, for monitoring; for users who may see all jobs. Answer: `Metrics`."""


class ReadProblem(Ask, frozen=True, kw_only=True):
    """Read what keeps the pool from taking jobs; everybody may. Answer: `Problem`."""


class ReadAudit(Ask, frozen=True, kw_only=True):
    """Read decisions and refusals since then; administrators see all, others their own. Answer: `Audited`."""

    since: float = 0.0
    user: str = ""
    """Filter: decisions by this user, or about this user or the user's jobs."""
    job: JobId | None = None
    before: int | None = None
    """Only events before this one (`seq`): the first row of an answer gives those left out of it."""
    limit: int = 1000
    """Maximum number of the newest rows, up to 2,000."""


class ReadPast(Ask, frozen=True, kw_only=True):
    """Read the events that say which jobs held which slots from then on, for a late viewer. Answer: `Past`."""

    since: float = 0.0
    """Seconds since the epoch. Jobs that existed then come with their earlier events."""
    after: int = 0
    """Only events after this one (`seq`): the `last` of the previous answer."""
    ended: bool = False
    """Instead read all events of jobs ended since then, forgotten ones too, and all changes of hosts."""


class Ping(Ask, frozen=True, kw_only=True):
    """Send a heartbeat. Answer: `Done`."""


class Shutdown(Ask, frozen=True, kw_only=True):
    """End the daemon; jobs go on. Only its own user may. Answer: `Done`."""


AnyAsk: TypeAlias = (
    Hello
    | SubmitJob
    | CancelJob
    | CancelJobs
    | ReleaseJob
    | ResizeJob
    | BeginDrain
    | Undrain
    | ListJobs
    | ListHosts
    | ListPolicies
    | ReadView
    | ReadDemand
    | SwitchPolicy
    | ExplainJob
    | Follow
    | Unfollow
    | ReportArrived
    | RenewLeases
    | ReportFailedHosts
    | ReadUsage
    | ReadAudit
    | ReadPast
    | RegisterKey
    | RevokeKey
    | ReadMetrics
    | ReadProblem
    | Ping
    | Shutdown
)


class Request(_Struct, frozen=True, kw_only=True):
    """A request of the daemon; `id` comes back in the answer."""

    id: int
    ask: AnyAsk


class _Head(Struct):
    id: int


# --- from the daemon --------------------------------------------------------------------------------------------------


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


class Message(_Struct, tag=True, frozen=True, kw_only=True):
    """The base of the daemon's messages."""


class AnswerMessage(Message, frozen=True, kw_only=True):
    """The answer to request `id`."""

    id: int
    answer: AnyAnswer


class EventsMessage(Message, frozen=True, kw_only=True):
    """Events in order of `seq`, without gap to the last ones sent; `previous` lets the receiver check that.

    Events that the receiver may not see (another user's progress) are left out, hence `previous` and `last`. A message
    without events says that the events so far end at `last`.
    """

    stream: int = 0
    """The `Follow`'s number."""
    previous: int
    last: int
    events: tuple[Event, ...]


class OrderMessage(Message, frozen=True, kw_only=True):
    """An order to an agent."""

    effect: AnyEffect


AnyMessage: TypeAlias = AnswerMessage | EventsMessage | OrderMessage

_request = msgspec.msgpack.Decoder(Request)
_message = msgspec.msgpack.Decoder(AnyMessage)
_head = msgspec.msgpack.Decoder(_Head)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Request | AnyMessage) -> bytes:
    """Encode a message as a frame; BadRequest if impossible, ProtocolError if the other side would refuse it."""
    try:
        frame = _encoder.encode(message)
    except (OverflowError, UnicodeEncodeError, RecursionError) as problem:
        raise BadRequest(f"this can't be sent: {problem}; send other values") from None
    if len(frame) > MAX_FRAME:
        msg = f"a message of {len(frame):,} bytes is over the limit of {MAX_FRAME:,}; send less at once"
        raise ProtocolError(msg)
    return frame


def decode_request(frame: bytes | memoryview) -> Request:
    """Decode a client's frame; ProtocolError for anything that isn't exactly a request."""
    return _decode(_request, frame)  # type: ignore[no-any-return]


def request_id(frame: bytes | memoryview) -> int:
    """Return the number of a request that is refused unread; 0 if it has none."""
    try:
        return _head.decode(frame).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


def decode_message(frame: bytes | memoryview) -> AnyMessage:
    """Decode the daemon's frame; ProtocolError for anything that isn't a message."""
    return _decode(_message, frame)  # type: ignore[no-any-return]


def _decode(decoder: msgspec.msgpack.Decoder[Any], frame: bytes | memoryview) -> Any:
    if len(frame) > MAX_FRAME:
        msg = f"a frame of {len(frame):,} bytes is over the limit of {MAX_FRAME:,}"
        raise ProtocolError(msg)
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        msg = f"not a message of protocol {VERSION}: {problem}"
        raise ProtocolError(msg) from problem
