"""The protocol on the daemon's socket, without I/O: what a frame holds, and its limits.

One ZeroMQ message is one frame: msgpack of a `Request` (to the daemon) or a `Message` (from it). Knows types and
errors; must not know sockets. Who is speaking comes from the socket (UNIX peer or CURVE key), never from the message.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from jupyter_elastic import types
from jupyter_elastic.types import (
    AgentPlace,
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
"""Bytes; a longer frame is refused unread."""


class _Struct(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


# --- to the daemon ----------------------------------------------------------------------------------------------------


Kind: TypeAlias = Literal["user", "service"]
"""What a Hub vouches for."""


class Ask(_Struct, tag=True, frozen=True, kw_only=True):
    """What a request asks for."""


class Hello(Ask, frozen=True, kw_only=True):
    """First message: which protocol, and in which role. An agent gets orders from then on. Answer: `Welcome`."""

    version: int
    role: str = "client"
    """`client` or `agent`."""
    place: AgentPlace | None = None
    """Where the agent is. A second agent of a user, elsewhere, is refused while the first has something that runs."""
    alone: bool = False
    """It has looked at the folders of all jobs, and no driver is alive."""
    take_over: bool = False
    """Its user says that nothing of the other agent runs any more."""


class SubmitJob(Ask, frozen=True, kw_only=True):
    """Queue a job; answered with `Submitted` once it is on disk. `key` makes a repeat harmless."""

    spec: JobSpec
    key: str


class CancelJob(Ask, frozen=True, kw_only=True):
    """End a job. Answer: `Done`."""

    job: JobId
    reason: str = ""


class CancelJobs(Ask, frozen=True, kw_only=True):
    """End these jobs, or all unfinished ones of `owner`: all of them, or none where one may not be ended.

    Answer: `Cancelled`.
    """

    jobs: tuple[JobId, ...] = ()
    owner: str = ""
    reason: str = ""


class ReleaseJob(Ask, frozen=True, kw_only=True):
    """Free the slots of a job whose owner's agent is gone, and queue it again. Administrators only. Answer: `Done`."""

    job: JobId
    reason: str = ""
    force: bool = False
    """Though the agent is there, or a lease runs: something of the job may still run."""


class ResizeJob(Ask, frozen=True, kw_only=True):
    """Change a job's range, or what else it asked for; what is not set stays (`Resize`). Answer: `Done`."""

    job: JobId
    min_slots: int | UnsetType = UNSET
    max_slots: int | UnsetType = UNSET
    sizes: tuple[int, ...] | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET
    deadline_at: float | UnsetType | None = UNSET


class Drain(Ask, frozen=True, kw_only=True):
    """Keep a host, a slot or (`target` empty: maintenance) the whole pool from new work. Administrators only.

    Answer: `Done`.
    """

    target: str = ""
    reason: str = ""
    grace_s: float | None = None
    """As in `DrainSlots`."""


class Undrain(Ask, frozen=True, kw_only=True):
    """End such a drain. Administrators only. Answer: `Done`."""

    target: str = ""


class ListJobs(Ask, frozen=True, kw_only=True):
    """Answer: `Jobs`, newest last. `all` includes the ended ones (the newest `limit`); `owner`: only that user's."""

    all: bool = False
    owner: str = ""
    job: JobId | None = None
    limit: int = 1000


class ListHosts(Ask, frozen=True, kw_only=True):
    """Answer: `Hosts`."""


class ListPolicies(Ask, frozen=True, kw_only=True):
    """Answer: `Policies`."""


class ReadView(Ask, frozen=True, kw_only=True):
    """What a policy would see now, for a what-if outside the daemon. Answer: `PoolView`."""


class ReadDemand(Ask, frozen=True, kw_only=True):
    """How many more slots the queue could use (`scheduler/core/demand.py`). Answer: `Demand`."""

    at_most: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """So many could be brought."""


class SwitchPolicy(Ask, frozen=True, kw_only=True):
    """Switch the policy. Answer: `Done`; unknown name or bad option: the old one stands."""

    name: str
    options: dict[str, Any] = {}
    reason: str = ""
    source: str = ""


class ExplainJob(Ask, frozen=True, kw_only=True):
    """Why does this job wait, or hold what it holds? Answer: `Explanation`."""

    job: JobId


class Follow(Ask, frozen=True, kw_only=True):
    """Send every event after `since` and go on with new ones, as `EventsMessage`s. Answer: `Following`."""

    stream: int = 0
    """The asker's number for it; a second Follow of the same number begins anew."""
    since: int = 0
    job: JobId | None = None
    """Only events of this job, and of the pool since it was submitted."""


class Unfollow(Ask, frozen=True, kw_only=True):
    """Send no more events of a stream. Answer: `Done`."""

    stream: int = 0
    """That of the `Follow`."""


class ReportArrived(Ask, frozen=True, kw_only=True):
    """An agent's report. Its `by` is ignored: the socket says who. Answer: `Done`."""

    report: Report


class RenewLeases(Ask, frozen=True, kw_only=True):
    """An agent's heart-beat: these attempts live, as (job, attempt), and their leases last a term from now on.

    Answer: `LeasesRenewed`.
    """

    attempts: tuple[tuple[JobId, int], ...] = ()


class FailedHost(_Struct, frozen=True, kw_only=True):
    """A host that an agent's user could not reach."""

    why: Annotated[str, Meta(max_length=4000)]
    again_at: float
    """When it is tried again, in seconds since the epoch."""


class ReportFailedHosts(Ask, frozen=True, kw_only=True):
    """An agent's: all hosts of a shared pool that its user can't reach now. Answer: `Done`."""

    hosts: Annotated[dict[Annotated[str, Meta(max_length=200)], FailedHost], Meta(max_length=10_000)] = {}


class ReadUsage(Ask, frozen=True, kw_only=True):
    """Who used how much from the day of `since` on; administrators see everybody's, others theirs. Answer: `Used`."""

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
    """Let this key connect no longer, and end its connections; administrators only. Answer: `Done`."""

    key: PublicKey
    user: str = ""
    """Only if it is this Hub user's or service's; empty: whose it may be."""
    kind: Kind = "user"
    reason: str = ""


class ReadMetrics(Ask, frozen=True, kw_only=True):
    """The figures of the daemon, for who watches it; who sees everybody's jobs may. Answer: `Metrics`."""


class ReadProblem(Ask, frozen=True, kw_only=True):
    """What keeps the pool from taking jobs; everybody may ask. Answer: `Problem`."""


class ReadAudit(Ask, frozen=True, kw_only=True):
    """Who decided and who was refused what since then; administrators see all, others theirs. Answer: `Audited`."""

    since: float = 0.0
    user: str = ""
    """Only what this one did, or what was done to his."""
    job: JobId | None = None
    before: int | None = None
    """Only events before this one (`seq`): with the first row of an answer, what was left out of it."""
    limit: int = 1000
    """The newest so many, of 2,000."""


class ReadPast(Ask, frozen=True, kw_only=True):
    """The events that say who held which slots from then on, for who begins to look later. Answer: `Past`."""

    since: float = 0.0
    """Seconds since the epoch. Jobs that were there then come with their events from before."""
    after: int = 0
    """Only events after this one (`seq`): the `last` of the answer before."""
    ended: bool = False
    """Instead all events of the jobs that have ended since then, forgotten ones too, and all changes of hosts."""


class Ping(Ask, frozen=True, kw_only=True):
    """Heart-beat. Answer: `Done`."""


class Shutdown(Ask, frozen=True, kw_only=True):
    """End the daemon; jobs go on. Only its own user may. Answer: `Done`."""


AnyAsk: TypeAlias = (
    Hello
    | SubmitJob
    | CancelJob
    | CancelJobs
    | ReleaseJob
    | ResizeJob
    | Drain
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
    """One ask; `id` comes back in the answer."""

    id: int
    ask: AnyAsk


class _Head(Struct):
    id: int


# --- from the daemon --------------------------------------------------------------------------------------------------


class Answer(_Struct, tag=True, frozen=True, kw_only=True):
    """What an ask is answered with."""


class Welcome(Answer, frozen=True, kw_only=True):
    """The pool as the newcomer needs it."""

    version: int
    package: str
    """Version of the daemon's package."""
    user: str
    """Who the socket says you are."""
    pool: str
    seq: int
    policy: str
    started_at: float
    pid: int = 0
    administers: bool = False
    """Whether you may change what is others'."""
    log_format: Literal["text", "json"] = "text"
    """How the daemon logs, and agents that were not told otherwise."""
    shared: bool = False
    """Whether others use the pool too: its other hosts are its administrator's to name."""


class Done(Answer, frozen=True, kw_only=True):
    """Carried out, and on disk if it changed anything."""


class Submitted(Answer, frozen=True, kw_only=True):
    """The job's number."""

    job: JobId


class Cancelled(Answer, frozen=True, kw_only=True):
    """The jobs that were told to end."""

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
    """What administrators keep from new work."""
    others: tuple[HostInfo, ...] = ()
    """Those that are other machines than the daemon's."""


class Policies(Answer, frozen=True, kw_only=True):
    """Installed policies; one is active."""

    policies: tuple[PolicyInfo, ...]
    refusal: str = ""
    """Why who asks may not switch, and whom to ask; empty when they may."""


class PoolView(Answer, frozen=True, kw_only=True):
    """The view, and the policy that decides with its options."""

    view: View
    policy: str
    options: dict[str, Any] = {}


class Demand(Answer, frozen=True, kw_only=True):
    """What the policy would give away beyond the slots that there are; at most what was asked for."""

    slots: int


class Explanation(Answer, frozen=True, kw_only=True):
    """A few lines for a person."""

    text: str
    until: str = ""
    """The end of `text` that says about when the job can start; empty where waiting alone does not help."""


class Following(Answer, frozen=True, kw_only=True):
    """Events after `seq` follow."""

    seq: int


class LeasesRenewed(Answer, frozen=True, kw_only=True):
    """Those of the attempts that still hold slots. What the others' were may be somebody else's by now."""

    held: tuple[tuple[JobId, int], ...] = ()
    lease_s: float = 0.0
    """The term of new leases; 0: they don't run out. An attempt keeps that of its `Launch`."""
    warm: int = 0
    """So many warm parents may a user keep on this pool; 0: as many as the user likes."""
    sessions: int = 0
    """So many sessions may the user have at a time; 0: as many as the user likes."""
    parked_mb: int = 0
    """Megabytes that the workers of these may have together between their cells; 0: a quarter of the machine's."""


class UsageRow(_Struct, frozen=True, kw_only=True):
    """What a user has used on a day."""

    day: str
    """UTC, as 2026-11-23."""
    user: str
    group: str = ""
    slot_s: float
    """Slots that were leased to the user's jobs, times seconds."""
    borrowed_s: float = 0.0
    """Of these, what was beyond the user's fair share or quota."""
    lent_s: float = 0.0
    """What others held of this user's; of a group, what was no member's."""


class Used(Answer, frozen=True, kw_only=True):
    """By day, user and group; what is still held counts until `until` (seconds since the epoch)."""

    rows: tuple[UsageRow, ...]
    until: float


class KeyAdmitted(Answer, frozen=True, kw_only=True):
    """The key may connect to `endpoint`, where the daemon proves that it is it by `server_key`, until `expires_at`."""

    user: str
    """What the pool calls him."""
    endpoint: str
    """As the daemon listens; `0.0.0.0` where that is any address."""
    server_key: str
    expires_at: float


MetricKind: TypeAlias = Literal["gauge", "counter", "histogram"]


class MetricSample(_Struct, frozen=True, kw_only=True):
    """A figure; of a histogram the sum of its values."""

    labels: tuple[str, ...] = ()
    value: float
    buckets: tuple[tuple[str, int], ...] = ()
    """Of a histogram, by upper bound in increasing order: how many values were at most so high."""


class MetricFamily(_Struct, frozen=True, kw_only=True):
    """Figures of one name, after Prometheus' conventions."""

    name: str
    kind: MetricKind
    text: str
    """What they are."""
    labels: tuple[str, ...] = ()
    """Names of the samples' labels."""
    samples: tuple[MetricSample, ...]


class Metrics(Answer, frozen=True, kw_only=True):
    """All figures, and what keeps the pool from taking jobs; empty when nothing does."""

    families: tuple[MetricFamily, ...]
    problem: str = ""


class Problem(Answer, frozen=True, kw_only=True):
    """Why the journal can't be written now; empty when it can."""

    text: str = ""


class AuditRow(_Struct, frozen=True, kw_only=True):
    """A decision, or refusals of one kind."""

    seq: int
    """The number of its event."""
    at: float
    by: str
    """Who decided; `daemon`: the policy, or time."""
    user: str = ""
    """Whom it is about."""
    job: JobId | None = None
    what: str
    reason: str = ""


class Audited(Answer, frozen=True, kw_only=True):
    """Decisions and refusals, oldest first."""

    rows: tuple[AuditRow, ...]
    more: bool = False
    """Whether older ones were left out."""


class Past(Answer, frozen=True, kw_only=True):
    """Events in order of `seq`: of jobs their beginning, slots and end, and of the pool its hosts, policies and shares.

    What the receiver may not see is left out.
    """

    events: tuple[Event, ...]
    last: int
    """There is none of these kinds up to this one that was not sent."""
    more: bool = False
    """Whether there are later ones: ask again `after` `last`."""


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
    """What the daemon sends."""


class AnswerMessage(Message, frozen=True, kw_only=True):
    """The answer to request `id`."""

    id: int
    answer: AnyAnswer


class EventsMessage(Message, frozen=True, kw_only=True):
    """Events in order of `seq`, without gap to the last ones sent; `previous` lets the receiver check that.

    Events that the receiver may not see (another user's progress) are left out, hence `previous` and `last`. A message
    without events says that the story so far ends at `last`.
    """

    stream: int = 0
    """That of the `Follow`."""
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
    """The frame of a message; BadRequest if none can be made, ProtocolError if the other side would refuse it."""
    try:
        frame = _encoder.encode(message)
    except (OverflowError, UnicodeEncodeError, RecursionError) as problem:
        raise BadRequest(f"this can't be sent: {problem}; send other values") from None
    if len(frame) > MAX_FRAME:
        msg = f"a message of {len(frame):,} bytes is over the limit of {MAX_FRAME:,}; send less at once"
        raise ProtocolError(msg)
    return frame


def decode_request(frame: bytes | memoryview) -> Request:
    """What a client sent; ProtocolError for anything that isn't exactly a request."""
    return _decode(_request, frame)  # type: ignore[no-any-return]


def request_id(frame: bytes | memoryview) -> int:
    """The number of a request that is refused unread; 0 where it has none."""
    try:
        return _head.decode(frame).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


def decode_message(frame: bytes | memoryview) -> AnyMessage:
    """What the daemon sent; ProtocolError for anything else."""
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
