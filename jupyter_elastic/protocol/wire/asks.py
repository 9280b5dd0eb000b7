"""Defines the requests to the daemon. Knows types; must not know their answers. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from jupyter_elastic.types import AgentOrigin, JobChange, JobId, JobSpec, Name, PublicKey, Report, Right


class _Struct(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


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


class ResizeJob(Ask, JobChange, frozen=True, kw_only=True):
    """Change a job's range, or another of its demands; unset fields keep their value. Answer: `Done`."""

    job: JobId


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
