"""Events, which every part of the system folds, and the envelope in which they travel."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from jupyter_elastic.types.vocabulary import (
    AgentOrigin,
    Count,
    Drain,
    Host,
    JobChange,
    JobId,
    JobSpec,
    Name,
    Progress,
    PublicKey,
    Record,
    Retention,
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
    """UNIX id of the owner; None in old journals, and for an owner who connected by a key."""


class AttemptEvent(EventData, frozen=True, kw_only=True):
    """An event of an attempt of a job."""

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
    """Seconds of the attempt's lease; see `Launch`."""


class RescaleRequested(Allocation, frozen=True, kw_only=True):
    """A running job is to go on with `slots`; its other slots drain."""

    yielded: Count = 0
    """Workers that the job has given up for interactive jobs and gets back when slots are idle."""


class JobRunning(AttemptEvent, frozen=True, kw_only=True):
    """A generation settled, or the cell came to an elastic loop; the job trains on `slots`."""

    generation: Count
    slots: tuple[SlotId, ...]
    pause_s: float = 0.0
    elastic: bool | None = None
    """True if the cell has come to an elastic loop; see `RunningReported`."""


class StopRequested(AttemptEvent, frozen=True, kw_only=True):
    """All slots of the attempt drain; `how` tells whether the job ends or is queued again."""

    how: Literal["cancel", "preempt", "time limit"]
    reason: Text = ""


class SlotsReleased(AttemptEvent, frozen=True, kw_only=True):
    """Slots are free again."""

    slots: tuple[SlotId, ...]


class JobProgressed(AttemptEvent, frozen=True, kw_only=True):
    """The job reported progress."""

    progress: Progress


class WorkerDied(AttemptEvent, frozen=True, kw_only=True):
    """A worker died unexpectedly and the attempt went on."""

    count: Count
    """Deaths of the attempt so far; of very many deaths not each is reported."""
    rank: Count
    slot: SlotId
    cause: Text
    step: Step | None = None
    empty: tuple[SlotId, ...] = ()
    """Slots that the job gives back; see `DeathReported`."""
    workers: Count = 0
    """Workers that go on if `empty` is set, until the next attempt or a `JobResized`."""

    @property
    def text(self) -> str:
        """Text for people: `rank 1 was killed by SIGKILL at step 120`."""
        if self.empty:
            return f"rank {self.rank} could not join: {self.cause}; the job stays at {self.workers}"
        return f"rank {self.rank} {self.cause}" + ("" if self.step is None else f" at step {self.step}")


class WorkerReplaced(AttemptEvent, frozen=True, kw_only=True):
    """The slot of a worker that died has a new worker that takes part."""

    count: Count
    rank: Count
    """Rank of the worker that died."""
    slot: SlotId
    after_s: float

    @property
    def text(self) -> str:
        """Text for people: `rank 1 was replaced after 0.4 s`."""
        return f"rank {self.rank} was replaced after {self.after_s:.1f} s"


class JobRequeued(AttemptEvent, frozen=True, kw_only=True):
    """The attempt is over and the job waits for the next one."""

    cause: Literal["preempted", "lost"]
    reason: Text = ""


class JobResized(EventData, JobChange, frozen=True, kw_only=True):
    """The job's range or other requests were changed; what is not set stays."""

    job: JobId
    min_slots: Count
    max_slots: Count
    by: Text = ""
    """User who asked for the change; empty in old journals."""


class JobEnded(EventData, frozen=True, kw_only=True):
    """The job is over for good."""

    job: JobId
    outcome: Literal["completed", "failed", "cancelled"]
    reason: Text = ""
    held: Count = 0
    """Number of slots that the job's session keeps for its next cell, for the spec's `hold_s`."""
    pinned: tuple[SlotId, ...] = ()
    """Slots that the session retains because its memory can't leave their devices; until `SlotsReleased`."""
    pinned_why: Text = ""
    pinned_s: float = 0.0
    """Seconds after which the session ends at the latest and gives the retained slots back."""

    def retention(self, at: float, hold_s: float) -> Retention | None:
        """Return what the session keeps after this end at `at`; `hold_s` is the spec's."""
        return Retention.of(self.held, at + hold_s, self.pinned, self.pinned_why, at + self.pinned_s)


class HoldEnded(EventData, frozen=True, kw_only=True):
    """The slots that an ended job's session has kept are free for all."""

    job: JobId
    reason: Text = ""
    """The waiting job; empty if the hold's time was over."""


class UnpinRequested(AttemptEvent, frozen=True, kw_only=True):
    """The session of an ended job is to end and to give back its retained slots (`JobEnded.pinned`)."""

    reason: Text = ""


class JobsForgotten(EventData, frozen=True, kw_only=True):
    """The state no longer has these ended jobs, nor the keys they were submitted with."""

    jobs: tuple[JobId, ...]


class HostsChanged(EventData, frozen=True, kw_only=True):
    """The pool has these hosts from now on."""

    hosts: tuple[Host, ...]


class DrainsChanged(EventData, frozen=True, kw_only=True):
    """An administrator drained or undrained slots."""

    target: Text = ""
    """Host or slot; see `Drain`."""
    drained: bool
    drains: tuple[Drain, ...]
    """All drains from now on."""


class PolicyUsed(EventData, frozen=True, kw_only=True):
    """This policy decides from now on."""

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
    """A plan was applied; only journaled if its memo, its reasons or its turn changed."""

    policy: Name
    memo: Any = None
    reasons: dict[str, str] = {}
    """Reasons of the policy for its sizes, by job id as text."""
    turn: tuple[JobId, ...] = ()
    """Waiting jobs that come next; see `Plan`."""


class AgentChanged(EventData, frozen=True, kw_only=True):
    """The agent of `user` connected or disconnected."""

    user: str
    connected: bool
    place: AgentOrigin | None = None
    """Origin of the agent; None: unchanged."""


class SharesChanged(EventData, frozen=True, kw_only=True):
    """The administrator's shares file has this content from now on."""

    weights: dict[str, float] = {}
    """Weights by name of user or group; 1 if absent."""
    quotas: dict[str, Count] = {}
    """Guaranteed slots by name of user or group."""
    groups: dict[str, tuple[str, ...]] = {}
    """Members by group."""


class BooksRestored(EventData, frozen=True, kw_only=True):
    """The journal up to here came from a backup; numbers that were used since are not used again."""

    next_job: JobId
    attempts: dict[str, Count] = {}
    """Last attempts of unfinished jobs, by job id as text."""


class AsksRefused(EventData, frozen=True, kw_only=True):
    """The daemon refused a user's requests of one kind for one kind of reason."""

    user: str
    ask: Text
    """Name of the refused message; empty: several kinds."""
    code: Text
    """Code of the error (`types.errors`)."""
    count: Count
    """Refusals since the last such event."""
    message: Text
    about: JobId | None = None
    """Job that the last refused request was about."""


class KeyRegistered(EventData, frozen=True, kw_only=True):
    """A key may connect until its term ends; a key registered before now has these rights and this term."""

    key: PublicKey
    user: Name
    rights: tuple[Right, ...] = ()
    groups: tuple[Name, ...] = ()
    """Groups of the user, as a registrar (a JupyterHub) names them."""
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
    """One line of the event stream. `seq` has no gaps; `cause` is the id of the stimulus."""

    seq: int
    at: float
    by: str
    cause: str
    data: AnyEventData
