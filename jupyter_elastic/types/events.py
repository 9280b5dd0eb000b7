"""The events that everybody folds, and the envelope in which they travel."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from jupyter_elastic.types.vocabulary import (
    AgentPlace,
    Count,
    Drain,
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


class EventData(Record, tag=True, frozen=True, kw_only=True):
    """The body of an event."""


class JobSubmitted(EventData, frozen=True, kw_only=True):
    """A job was accepted and stands in the queue."""

    job: JobId
    owner: str
    spec: JobSpec
    uid: int | None = None
    """The owner's UNIX id; None in old journals, and for who came by a key."""


class AttemptEvent(EventData, frozen=True, kw_only=True):
    """What happened to an attempt of a job."""

    job: JobId
    attempt: Count


class Allocation(AttemptEvent, frozen=True, kw_only=True):
    """Slots were given to the next generation of an attempt."""

    generation: Count
    slots: tuple[SlotId, ...]
    servers: Count = 0
    reason: Text = ""


class JobStarted(Allocation, frozen=True, kw_only=True):
    """Slots were leased to a new attempt of a queued job."""

    lease_s: float = 0.0
    """As in `Launch`."""


class RescaleRequested(Allocation, frozen=True, kw_only=True):
    """A running job is to go on with `slots`; slots that it had and are not among them drain."""

    yielded: Count = 0
    """Workers that it has given up for interactive jobs and is to have back when slots are idle."""


class JobRunning(AttemptEvent, frozen=True, kw_only=True):
    """A generation settled, or the cell came to an elastic loop; the job trains on `slots`."""

    generation: Count
    slots: tuple[SlotId, ...]
    pause_s: float = 0.0
    elastic: bool | None = None
    """As in `RunningReported`."""


class StopRequested(AttemptEvent, frozen=True, kw_only=True):
    """All slots of the attempt drain; `how` says whether the job ends or is queued again."""

    how: Literal["cancel", "preempt", "time limit"]
    reason: Text = ""


class SlotsReleased(AttemptEvent, frozen=True, kw_only=True):
    """Slots are free again."""

    slots: tuple[SlotId, ...]


class JobProgressed(AttemptEvent, frozen=True, kw_only=True):
    """The job reported progress."""

    progress: Progress


class WorkerDied(AttemptEvent, frozen=True, kw_only=True):
    """A worker died unasked and the attempt went on."""

    count: Count
    """Deaths of the attempt until then; of very many not each is reported."""
    rank: Count
    slot: SlotId
    cause: Text
    step: Step | None = None
    empty: tuple[SlotId, ...] = ()
    """As in `DeathReported`; the job gives them back."""
    workers: Count = 0
    """With `empty`: so many go on, until the next attempt or a `JobResized`."""

    @property
    def text(self) -> str:
        """For people: `rank 1 was killed by SIGKILL at step 120`."""
        if self.empty:
            return f"rank {self.rank} could not join: {self.cause}; the job stays at {self.workers}"
        return f"rank {self.rank} {self.cause}" + ("" if self.step is None else f" at step {self.step}")


class WorkerReplaced(AttemptEvent, frozen=True, kw_only=True):
    """The slot of a worker that died has one again that takes part."""

    count: Count
    rank: Count
    """Of the worker that died."""
    slot: SlotId
    after_s: float

    @property
    def text(self) -> str:
        """For people: `rank 1 was replaced after 0.4 s`."""
        return f"rank {self.rank} was replaced after {self.after_s:.1f} s"


class JobRequeued(AttemptEvent, frozen=True, kw_only=True):
    """The attempt is over and the job waits for the next one."""

    cause: Literal["preempted", "lost"]
    reason: Text = ""


class JobResized(EventData, frozen=True, kw_only=True):
    """The job's range was changed, or what else it asked for; what is not set stays."""

    job: JobId
    min_slots: Count
    max_slots: Count
    by: Text = ""
    """Who asked for it; empty in old journals."""
    sizes: tuple[int, ...] | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET
    deadline_at: float | UnsetType | None = UNSET

    def applied(self, spec: JobSpec) -> JobSpec:
        """What the job asks for from now on."""
        others = {name: getattr(self, name) for name in ("sizes", "preemptible", "deadline_at")}
        changed = {name: value for name, value in others.items() if value is not UNSET}
        return replace(spec, min_slots=self.min_slots, max_slots=self.max_slots, **changed)


class JobEnded(EventData, frozen=True, kw_only=True):
    """The job is over for good."""

    job: JobId
    outcome: Literal["completed", "failed", "cancelled"]
    reason: Text = ""
    held: Count = 0
    """So many slots its session keeps for its next cell, for the time that the job has asked for."""
    pinned: tuple[SlotId, ...] = ()
    """Slots that its session keeps because its memory can't leave their devices; until `SlotsReleased`."""
    pinned_why: Text = ""
    pinned_s: float = 0.0
    """At the latest after so long the session ends and gives them back."""


class HoldEnded(EventData, frozen=True, kw_only=True):
    """The slots that the session of an ended job has kept are anybody's."""

    job: JobId
    reason: Text = ""
    """Who waits for slots; empty when the time was over."""


class UnpinRequested(AttemptEvent, frozen=True, kw_only=True):
    """The session of an ended job is to end, and to give back the slots that it has kept (`JobEnded.pinned`)."""

    reason: Text = ""


class JobsForgotten(EventData, frozen=True, kw_only=True):
    """The state no longer holds these ended jobs, nor the keys they were submitted with."""

    jobs: tuple[JobId, ...]


class HostsChanged(EventData, frozen=True, kw_only=True):
    """The pool's hosts are these from now on."""

    hosts: tuple[Host, ...]


class DrainsChanged(EventData, frozen=True, kw_only=True):
    """An administrator drained or undrained slots."""

    target: Text = ""
    """As in `Drain`."""
    drained: bool
    drains: tuple[Drain, ...]
    """All that count from now on."""


class PolicyUsed(EventData, frozen=True, kw_only=True):
    """A policy decides from now on."""

    name: Name
    options: dict[str, Any] = {}
    source: str = ""
    previous: str = ""
    reason: Text = ""


class PlanRejected(EventData, frozen=True, kw_only=True):
    """A plan was illegal, or the policy failed: the present allocation stands."""

    policy: Name
    reason: Text


class PlanAccepted(EventData, frozen=True, kw_only=True):
    """A plan was applied; only journaled when its memo, its reasons or its turn changed."""

    policy: Name
    memo: Any = None
    reasons: dict[str, str] = {}
    """Why the policy gave a job what it gave, by job id as text."""
    turn: tuple[JobId, ...] = ()
    """As in `Plan`."""


class AgentChanged(EventData, frozen=True, kw_only=True):
    """The agent of `user` connected or went."""

    user: str
    connected: bool
    place: AgentPlace | None = None
    """Where it is; None: where it was."""


class SharesChanged(EventData, frozen=True, kw_only=True):
    """What the administrator's file says of shares from now on."""

    weights: dict[str, float] = {}
    """By name of user or group; 1 where nothing is said."""
    quotas: dict[str, Count] = {}
    """Guaranteed slots, by name of user or group."""
    groups: dict[str, tuple[str, ...]] = {}
    """Members by group."""


class BooksRestored(EventData, frozen=True, kw_only=True):
    """The journal up to here came from a backup; no number is used again that was used since."""

    next_job: JobId
    attempts: dict[str, Count] = {}
    """The last attempt of unfinished jobs, by job id as text."""


class AsksRefused(EventData, frozen=True, kw_only=True):
    """The daemon refused a user's asks of one kind for one kind of reason."""

    user: str
    ask: Text
    """What was asked, by the name of the message; empty: of many kinds."""
    code: Text
    """Of the error (`types.errors`)."""
    count: Count
    """How many since the last such event."""
    message: Text
    """What the last one was told."""
    about: JobId | None = None
    """The job that the last one was about."""


class KeyRegistered(EventData, frozen=True, kw_only=True):
    """A key may connect until its term ends; one that was registered before has these rights and this term now."""

    key: PublicKey
    user: Name
    rights: tuple[Right, ...] = ()
    groups: tuple[Name, ...] = ()
    """Of whoever vouches for the user (a JupyterHub)."""
    expires_at: float


class KeyRevoked(EventData, frozen=True, kw_only=True):
    """A key may no longer connect."""

    key: PublicKey
    user: Name
    reason: Text = ""


AnyEventData: TypeAlias = (
    JobSubmitted
    | JobStarted
    | RescaleRequested
    | JobRunning
    | StopRequested
    | SlotsReleased
    | JobProgressed
    | WorkerDied
    | WorkerReplaced
    | JobRequeued
    | JobResized
    | JobEnded
    | HoldEnded
    | UnpinRequested
    | JobsForgotten
    | HostsChanged
    | DrainsChanged
    | PolicyUsed
    | PlanRejected
    | PlanAccepted
    | AgentChanged
    | SharesChanged
    | AsksRefused
    | BooksRestored
    | KeyRegistered
    | KeyRevoked
)


class Event(Record, frozen=True, kw_only=True):
    """One line of the one event stream. `seq` has no gaps; `cause` is the id of the stimulus."""

    seq: int
    at: float
    by: str
    cause: str
    data: AnyEventData
