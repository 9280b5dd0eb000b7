"""Stimuli of the core: commands of people, and reports of agents and hosts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from jupyter_elastic.types.policy import Plan
from jupyter_elastic.types.vocabulary import (
    AgentOrigin,
    Count,
    Host,
    JobChange,
    JobId,
    JobSpec,
    Name,
    Progress,
    PublicKey,
    Record,
    Right,
    SlotId,
    Step,
    Text,
)


class Stimulus(Record, tag=True, frozen=True, kw_only=True):
    """Input of the core. `at` is its time, `by` a user name or `daemon`, `id` the cause that its events name."""

    at: float
    by: str
    id: str


class Submit(Stimulus, frozen=True, kw_only=True):
    """Command: queue this job. Yields `JobSubmitted`, or an error that tells what to change."""

    spec: JobSpec
    uid: int | None = None
    """UNIX id of the submitter; None for a user who connected by a key."""


class Cancel(Stimulus, frozen=True, kw_only=True):
    """Command: end this job, whatever it is doing."""

    job: JobId
    reason: Text = ""


class Resize(Stimulus, frozen=True, kw_only=True):
    """Command: let the job hold another range of slots from now on, or change its other requests."""

    job: JobId
    change: JobChange


class UsePolicy(Stimulus, frozen=True, kw_only=True):
    """Command: let another policy decide from now on. The daemon has checked name and options."""

    name: Name
    options: dict[str, Any] = {}
    reason: Text = ""
    source: Annotated[str, Meta(max_length=100_000)] = ""
    """Source text of a policy given from a cell; empty for an installed one."""


class DrainSlots(Stimulus, frozen=True, kw_only=True):
    """Command: keep slots from new work, and let what runs there leave them."""

    target: Annotated[str, Meta(max_length=300)] = ""
    """Host or slot; see `Drain`."""
    reason: Text = ""
    grace_s: float | None = None
    """Seconds after which jobs that are still there are stopped and requeued; None: they run to their end."""


class UndrainSlots(Stimulus, frozen=True, kw_only=True):
    """Command: let slots be used again that were drained under exactly this name."""

    target: Annotated[str, Meta(max_length=300)] = ""


class Propose(Stimulus, frozen=True, kw_only=True):
    """Plan of a policy; the core checks it as untrusted."""

    plan: Plan
    policy: Name


class PolicyFailed(Stimulus, frozen=True, kw_only=True):
    """The active policy raised, was too slow, or could not be read: the present allocation stands."""

    policy: Name
    reason: Text


class HostsReported(Stimulus, frozen=True, kw_only=True):
    """The pool has these hosts now; a host that is not named is lost."""

    hosts: tuple[Host, ...]


class UseShares(Stimulus, frozen=True, kw_only=True):
    """Command: use these weights, quotas and groups from now on (`SharesChanged`)."""

    weights: dict[str, float]
    quotas: dict[str, Count]
    groups: dict[str, tuple[str, ...]]


class AdmitKey(Stimulus, frozen=True, kw_only=True, tag="RegisterKey"):
    """Command: let this key connect as `user` for `term_s` seconds from now on."""

    key: PublicKey
    user: Name
    rights: tuple[Right, ...] = ()
    groups: tuple[Name, ...] = ()
    term_s: float


class WithdrawKey(Stimulus, frozen=True, kw_only=True, tag="RevokeKey"):
    """Command: let this key connect no longer. An unregistered key is no error."""

    key: PublicKey
    reason: Text = ""


class AgentReported(Stimulus, frozen=True, kw_only=True):
    """The agent of user `by` has connected (True) or is gone (False)."""

    connected: bool
    place: AgentOrigin | None = None


class AttemptReport(Stimulus, frozen=True, kw_only=True, omit_defaults=False):
    """A report of an agent about an attempt of a job. The daemon alone stamps it, whatever stamp it came with.

    The stamp's fields are written as they stand here, since agents and daemons of version 0.1 require them.
    """

    at: float = 0.0
    by: str = ""
    id: str = ""
    job: JobId
    attempt: Count


class RunningReported(AttemptReport, frozen=True, kw_only=True):
    """Generation `generation` of an attempt has settled: its members train on exactly `slots`."""

    generation: Count
    slots: tuple[SlotId, ...]
    pause_s: float = 0.0
    """Seconds that the members stood still for it."""
    elastic: bool | None = None
    """True if the cell has come to an elastic loop in this attempt; None: not yet, but its text hints at one."""


class ReleaseReported(AttemptReport, frozen=True, kw_only=True):
    """The processes on these slots are gone."""

    slots: tuple[SlotId, ...]
    generation: Count | None = None
    """Newest generation that the engine knew when the processes ended. So a late repeat of the report can't be taken
    for news about a slot that the attempt got back in a later generation."""


class ProgressReported(AttemptReport, frozen=True, kw_only=True):
    """The job reported its progress."""

    progress: Progress


class ExitReported(AttemptReport, frozen=True, kw_only=True):
    """The attempt is over and all its processes are gone, as its agent reports or the end of its lease implies.

    `completed` and `failed` are the cell's own end; `cancelled` and `preempted` follow a `Stop`; `lost` means that the
    attempt ended through no fault of the cell (driver killed, host gone): it is queued again.
    """

    outcome: Literal["completed", "failed", "cancelled", "preempted", "lost"]
    reason: Text = ""
    pinned: tuple[SlotId, ...] = ()
    """Slots by rank of the session's workers, which live on, if memory of one of them can't leave its device. A
    `ReleaseReported` of this attempt reports their end."""
    pinned_why: Text = ""
    pinned_s: float = 0.0
    """Maximum seconds that the session's workers stay if no cell comes."""


class TakenForLost(ExitReported, frozen=True, kw_only=True):
    """The daemon or an administrator takes an attempt's slots back although no agent reported the end of its processes.

    `outcome` is `lost`.
    """


class DeathReported(AttemptReport, frozen=True, kw_only=True):
    """A worker died unexpectedly; the attempt goes on."""

    count: Count
    """Deaths of the attempt so far, this one included. Reports may be left out, so that a job whose workers die again
    and again does not fill the journal."""
    rank: Count
    slot: SlotId
    cause: Text
    """Text such as `was killed by SIGKILL`."""
    step: Step | None = None
    """Last step that was reported before the death."""
    empty: tuple[SlotId, ...] = ()
    """Slots that stay empty, of a joining worker that took no step with the others and those that came with it."""
    generation: Count = 0
    """Newest generation that the engine knew, if `empty` is set."""


class ReplacementReported(AttemptReport, frozen=True, kw_only=True):
    """The slot of a worker that died has a new worker that takes part."""

    count: Count
    """Number of that death."""
    rank: Count
    """Rank of the worker that died."""
    slot: SlotId
    after_s: float


class Forget(Stimulus, frozen=True, kw_only=True):
    """Command: forget jobs that ended before `before`, and the oldest beyond the `keep` newest ended ones."""

    before: float
    keep: Annotated[int, Meta(ge=0)]


class Refuse(Stimulus, frozen=True, kw_only=True):
    """The daemon has refused requests of user `by`; the fields are those of `AsksRefused`."""

    ask: Text
    code: Text
    count: Count
    message: Text
    about: JobId | None = None


class Restore(Stimulus, frozen=True, kw_only=True):
    """The journal so far came from a backup; the fields are those of `BooksRestored`."""

    next_job: JobId
    attempts: dict[str, Count] = {}


class Tick(Stimulus, frozen=True, kw_only=True):
    """Time has passed."""


Report: TypeAlias = (
    RunningReported | ReleaseReported | ProgressReported | DeathReported | ReplacementReported | ExitReported
)
