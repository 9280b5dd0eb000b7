"""What the core acts on: commands of people and reports of agents and hosts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from jupyter_elastic.types.policy import Plan
from jupyter_elastic.types.vocabulary import (
    AgentPlace,
    Count,
    Host,
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
    """Something that the core acts on. `at` when, `by` whom (a user name or `daemon`), `id` what its events name."""

    at: float
    by: str
    id: str


class Submit(Stimulus, frozen=True, kw_only=True):
    """Command: queue this job. Answered by `JobSubmitted`, or an error that says what to change."""

    spec: JobSpec
    uid: int | None = None
    """The UNIX id of who asks; None for who came by a key."""


class Cancel(Stimulus, frozen=True, kw_only=True):
    """Command: end this job, whatever it is doing."""

    job: JobId
    reason: Text = ""


class Resize(Stimulus, frozen=True, kw_only=True):
    """Command: let the job hold between `min_slots` and `max_slots` from now on, or change what else it asked for.

    What is not set stays; with `sizes` alone the range becomes theirs.
    """

    job: JobId
    min_slots: Annotated[int, Meta(ge=1, le=100_000)] | UnsetType = UNSET
    max_slots: Annotated[int, Meta(ge=1, le=100_000)] | UnsetType = UNSET
    sizes: tuple[int, ...] | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET
    deadline_at: float | UnsetType | None = UNSET


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
    """As in `Drain`."""
    reason: Text = ""
    grace_s: float | None = None
    """After so long jobs that are still there are stopped and queued again; None: they run to their end."""


class UndrainSlots(Stimulus, frozen=True, kw_only=True):
    """Command: let slots be used again that were drained under this very name."""

    target: Annotated[str, Meta(max_length=300)] = ""


class Propose(Stimulus, frozen=True, kw_only=True):
    """A policy's plan comes back. It is checked as an untrusted one."""

    plan: Plan
    policy: Name


class PolicyFailed(Stimulus, frozen=True, kw_only=True):
    """The active policy raised, was too slow, or could not be read: the present allocation stands."""

    policy: Name
    reason: Text


class HostsReported(Stimulus, frozen=True, kw_only=True):
    """These hosts exist now; a host that is not named is lost."""

    hosts: tuple[Host, ...]


class UseShares(Stimulus, frozen=True, kw_only=True):
    """Command: these weights, quotas and groups count from now on (`SharesChanged`)."""

    weights: dict[str, float]
    quotas: dict[str, Count]
    groups: dict[str, tuple[str, ...]]


class RegisterKey(Stimulus, frozen=True, kw_only=True):
    """Command: let this key connect as `user` for `term_s` seconds from now on."""

    key: PublicKey
    user: Name
    rights: tuple[Right, ...] = ()
    groups: tuple[Name, ...] = ()
    term_s: float


class RevokeKey(Stimulus, frozen=True, kw_only=True):
    """Command: let this key connect no longer. One that is not registered is no error."""

    key: PublicKey
    reason: Text = ""


class AgentReported(Stimulus, frozen=True, kw_only=True):
    """The agent of user `by` has connected (True) or is gone (False)."""

    connected: bool
    place: AgentPlace | None = None


class AttemptReport(Stimulus, frozen=True, kw_only=True):
    """What an agent reports of an attempt of a job."""

    job: JobId
    attempt: Count


class RunningReported(AttemptReport, frozen=True, kw_only=True):
    """Generation `generation` of an attempt has settled: its members train on exactly `slots`."""

    generation: Count
    slots: tuple[SlotId, ...]
    pause_s: float = 0.0
    """How long the members stood still for it."""
    elastic: bool | None = None
    """Whether the cell has come to an elastic loop in this attempt; None: not yet, but its text hints at one."""


class ReleaseReported(AttemptReport, frozen=True, kw_only=True):
    """The processes on these slots are gone."""

    slots: tuple[SlotId, ...]
    generation: Count | None = None
    """The newest generation that the engine knew when they went. A late repeat of the report then can't be taken for
    news about a slot that the attempt got back in a later generation."""


class ProgressReported(AttemptReport, frozen=True, kw_only=True):
    """The job reported how far it is."""

    progress: Progress


class ExitReported(AttemptReport, frozen=True, kw_only=True):
    """The attempt is over and every process of it is gone: so says its agent, or the daemon when its lease has run out.

    `completed` and `failed` are the cell's own end; `cancelled` and `preempted` follow a `Stop`; `lost` means that the
    attempt ended through no fault of the cell (driver killed, host gone): it is queued again.
    """

    outcome: Literal["completed", "failed", "cancelled", "preempted", "lost"]
    reason: Text = ""
    pinned: tuple[SlotId, ...] = ()
    """By rank the slots of the session's workers, which live on, where memory of one of them can't leave its device. A
    `ReleaseReported` of this attempt says that they are gone."""
    pinned_why: Text = ""
    pinned_s: float = 0.0
    """So long they stay at most when no cell comes."""


class TakenForLost(ExitReported, frozen=True, kw_only=True):
    """The daemon or an administrator takes the slots of an attempt back; no agent has said that its processes are gone.

    `outcome` is `lost`.
    """


class DeathReported(AttemptReport, frozen=True, kw_only=True):
    """A worker died and nobody had asked for it; the attempt goes on."""

    count: Count
    """Of the attempt so far, this one included. Reports may be left out, so that a job whose workers die again and
    again does not fill the journal."""
    rank: Count
    slot: SlotId
    cause: Text
    """`was killed by SIGKILL`."""
    step: Step | None = None
    """The last step that was reported before."""
    empty: tuple[SlotId, ...] = ()
    """It was a newcomer that took no step with the others: its slot stays empty, and those of who came with it."""
    generation: Count = 0
    """With `empty`: the newest that the engine knew then."""


class ReplacementReported(AttemptReport, frozen=True, kw_only=True):
    """The slot of a worker that died has one again that takes part."""

    count: Count
    """The number of that death."""
    rank: Count
    """Of the worker that died."""
    slot: SlotId
    after_s: float


class Forget(Stimulus, frozen=True, kw_only=True):
    """Let go of the records of jobs that ended before `before`, and of the oldest beyond the `keep` newest ones."""

    before: float
    keep: Annotated[int, Meta(ge=0)]


class Refuse(Stimulus, frozen=True, kw_only=True):
    """The daemon has refused asks of user `by`; the fields are those of `AsksRefused`."""

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
"""What an agent may report."""
