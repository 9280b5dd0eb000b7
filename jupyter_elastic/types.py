"""The vocabulary: every word that two parts of the house say to each other.

Knows the words of ARCHITECTURE.md and nothing else: no clock, no socket, no framework. Times are seconds since the
epoch (`*_at`) or durations in seconds (`*_s`). All structs are frozen; what changes is a new struct.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeAlias

from msgspec import Meta, Struct

JobId: TypeAlias = int
SlotId: TypeAlias = str
"""`host:index`, for example `lab1:3`."""

Phase: TypeAlias = Literal["queued", "starting", "running", "rescaling", "stopping", "completed", "failed", "cancelled"]
ENDED: frozenset[Phase] = frozenset({"completed", "failed", "cancelled"})
ACTIVE: frozenset[Phase] = frozenset({"starting", "running", "rescaling", "stopping"})

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Text: TypeAlias = Annotated[str, Meta(max_length=10_000)]
Path: TypeAlias = Annotated[str, Meta(max_length=4096)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]


class _Struct(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What all messages share: immutable, named fields, nothing unknown accepted.

    What a view holds ten thousand of is `gc=False`: among immutable things the collector can't find a cycle, and its
    walks over them would stand in the way of submits.
    """


# --- what a pool is made of -------------------------------------------------------------------------------------------


class Slot(_Struct, frozen=True, kw_only=True):
    """Room for one worker: a GPU or a share of the CPU cores."""

    index: Count
    device: Text = ""
    """The GPU's UUID; empty for CPU slots."""
    out: Text = ""
    """Why the slot can't be leased (foreign process, drained by the administrator); empty when it can."""


class Host(_Struct, frozen=True, kw_only=True):
    """A machine of the pool."""

    name: Name
    kind: Literal["gpu", "cpu"]
    slots: tuple[Slot, ...]

    def slot_id(self, index: int) -> SlotId:
        """The pool-wide name of slot `index`."""
        return f"{self.name}:{index}"


class Size(_Struct, frozen=True, gc=False):
    """How many workers (and parameter servers) a job is given. A server takes one slot, as a worker does."""

    workers: Count
    servers: Count = 0

    @property
    def slots(self) -> int:
        """Slots in all."""
        return self.workers + self.servers


class JobSpec(_Struct, frozen=True, kw_only=True):
    """What a person asked for. The daemon never opens `folder`; only the owner's agent does."""

    name: Name
    folder: Path
    """Absolute path of the job's folder, written by its owner before the submit: payload, logs, results, commits."""
    python: Path
    """The interpreter that runs the workers: the kernel's own."""
    min_slots: Annotated[int, Meta(ge=1, le=100_000)]
    max_slots: Annotated[int, Meta(ge=1, le=100_000)]
    engine: Name = "horovod"
    sizes: tuple[int, ...] = ()
    """Allowed numbers of workers; empty: every number from `min_slots` to `max_slots`."""
    min_servers: Count = 0
    max_servers: Count = 0
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    preemptible: bool = True
    deadline_at: float | None = None
    max_time_s: float | None = None
    """Running time after which the job is stopped as failed (Slurm's `--time`)."""
    estimate_s: float | None = None
    """The owner's guess of the running time at `min_slots`, for backfill."""
    group: Annotated[str, Meta(max_length=200)] = ""
    notebook: Path = ""
    cell: Annotated[str, Meta(max_length=200)] = ""


class Progress(_Struct, frozen=True, kw_only=True):
    """What rank 0 last said of its training. Counters never go back except after a rollback to a commit."""

    step: Annotated[int, Meta(ge=0, le=2**53 - 1)] | None = None
    """As large as a page's JavaScript can count: long trainings take more than a million."""
    epoch: float | None = None
    epochs: float | None = None
    samples: float | None = None
    """Samples trained so far, over all ranks."""
    total_samples: float | None = None
    samples_per_s: float | None = None
    world_size: Count | None = None
    noise_scale: float | None = None
    """Gradient noise scale in samples (McCandlish et al. 2018), where the job reports it."""
    metrics: dict[Annotated[str, Meta(max_length=200)], float] = {}
    not_finite: tuple[Annotated[str, Meta(max_length=200)], ...] = ()
    """Metrics that are NaN or infinite now; in a fact they are named here and left out of `metrics`."""


# --- stimuli: wishes of people and observations of the world ----------------------------------------------------------


class Stimulus(_Struct, tag=True, frozen=True, kw_only=True):
    """Something that the core is told. `at` when, `by` whom (a user name or `daemon`), `id` what its events name."""

    at: float
    by: str
    id: str


class Submit(Stimulus, frozen=True, kw_only=True):
    """Wish: queue this job. Answered by `JobSubmitted`, or an error that says what to change."""

    spec: JobSpec


class Cancel(Stimulus, frozen=True, kw_only=True):
    """Wish: end this job, whatever it is doing."""

    job: JobId
    reason: Text = ""


class Resize(Stimulus, frozen=True, kw_only=True):
    """Wish: let the job hold between `min_slots` and `max_slots` from now on."""

    job: JobId
    min_slots: Annotated[int, Meta(ge=1, le=100_000)]
    max_slots: Annotated[int, Meta(ge=1, le=100_000)]


class UsePolicy(Stimulus, frozen=True, kw_only=True):
    """Wish: let another policy decide from now on. The daemon has checked name and options."""

    name: Name
    options: dict[str, Any] = {}
    reason: Text = ""
    source: Annotated[str, Meta(max_length=100_000)] = ""
    """Source text of a policy given from a cell; empty for an installed one."""


class Propose(Stimulus, frozen=True, kw_only=True):
    """A policy's plan comes back. It is checked as if a stranger had sent it."""

    plan: Plan
    policy: Name


class PolicyFailed(Stimulus, frozen=True, kw_only=True):
    """The active policy raised, was too slow, or could not be read: the present allocation stands."""

    policy: Name
    reason: Text


class HostsSeen(Stimulus, frozen=True, kw_only=True):
    """These hosts exist now; a host that is not named is lost."""

    hosts: tuple[Host, ...]


class AgentSeen(Stimulus, frozen=True, kw_only=True):
    """The agent of user `by` has connected (True) or is gone (False)."""

    connected: bool


class RunningSeen(Stimulus, frozen=True, kw_only=True):
    """Generation `generation` of an attempt has settled: its members train on exactly `slots`."""

    job: JobId
    attempt: Count
    generation: Count
    slots: tuple[SlotId, ...]
    pause_s: float = 0.0
    """How long the members stood still for it."""


class ReleaseSeen(Stimulus, frozen=True, kw_only=True):
    """The processes on these slots are gone."""

    job: JobId
    attempt: Count
    slots: tuple[SlotId, ...]
    generation: Count | None = None
    """The newest generation that the engine knew when they went. A late repeat of the report then can't be taken for
    news about a slot that the attempt got back in a later generation."""


class ProgressSeen(Stimulus, frozen=True, kw_only=True):
    """The job reported how far it is."""

    job: JobId
    attempt: Count
    progress: Progress


class ExitSeen(Stimulus, frozen=True, kw_only=True):
    """The attempt is over and every process of it is gone.

    `completed` and `failed` are the cell's own end; `cancelled` and `preempted` follow a `Stop`; `lost` means that the
    attempt ended through no fault of the cell (driver killed, host gone): it is queued again.
    """

    job: JobId
    attempt: Count
    outcome: Literal["completed", "failed", "cancelled", "preempted", "lost"]
    reason: Text = ""


class Tick(Stimulus, frozen=True, kw_only=True):
    """Time has passed."""


Wish: TypeAlias = Submit | Cancel | Resize | UsePolicy
Observation: TypeAlias = RunningSeen | ReleaseSeen | ProgressSeen | ExitSeen
"""What an agent may report."""


# --- events: the facts that everybody folds ---------------------------------------------------------------------------


class Fact(_Struct, tag=True, frozen=True, kw_only=True):
    """The body of an event."""


class JobSubmitted(Fact, frozen=True, kw_only=True):
    """A job was accepted and stands in the queue."""

    job: JobId
    owner: str
    spec: JobSpec


class JobStarted(Fact, frozen=True, kw_only=True):
    """Slots were leased to a new attempt of a queued job."""

    job: JobId
    attempt: Count
    generation: Count
    slots: tuple[SlotId, ...]
    servers: Count = 0
    reason: Text = ""


class RescaleRequested(Fact, frozen=True, kw_only=True):
    """A running job is to go on with `slots`; slots that it had and are not among them drain."""

    job: JobId
    attempt: Count
    generation: Count
    slots: tuple[SlotId, ...]
    servers: Count = 0
    reason: Text = ""


class JobRunning(Fact, frozen=True, kw_only=True):
    """A generation settled; the job trains on `slots`."""

    job: JobId
    attempt: Count
    generation: Count
    slots: tuple[SlotId, ...]
    pause_s: float = 0.0


class StopRequested(Fact, frozen=True, kw_only=True):
    """All slots of the attempt drain; `how` says whether the job ends or is queued again."""

    job: JobId
    attempt: Count
    how: Literal["cancel", "preempt", "time limit"]
    reason: Text = ""


class SlotsReleased(Fact, frozen=True, kw_only=True):
    """Slots are free again."""

    job: JobId
    attempt: Count
    slots: tuple[SlotId, ...]


class JobProgressed(Fact, frozen=True, kw_only=True):
    """The job reported progress."""

    job: JobId
    attempt: Count
    progress: Progress


class JobRequeued(Fact, frozen=True, kw_only=True):
    """The attempt is over and the job waits for the next one."""

    job: JobId
    attempt: Count
    """The attempt that is over."""
    cause: Literal["preempted", "lost"]
    reason: Text = ""


class JobResized(Fact, frozen=True, kw_only=True):
    """The owner changed the job's range."""

    job: JobId
    min_slots: Count
    max_slots: Count


class JobEnded(Fact, frozen=True, kw_only=True):
    """The job is over for good."""

    job: JobId
    outcome: Literal["completed", "failed", "cancelled"]
    reason: Text = ""


class HostsChanged(Fact, frozen=True, kw_only=True):
    """The pool's hosts are these from now on."""

    hosts: tuple[Host, ...]


class PolicyUsed(Fact, frozen=True, kw_only=True):
    """A policy decides from now on."""

    name: Name
    options: dict[str, Any] = {}
    source: str = ""
    previous: str = ""
    reason: Text = ""


class PlanRejected(Fact, frozen=True, kw_only=True):
    """A plan was illegal, or the policy failed: the present allocation stands."""

    policy: Name
    reason: Text


class PlanAccepted(Fact, frozen=True, kw_only=True):
    """A plan was applied; only journaled when its memo or its reasons changed."""

    policy: Name
    memo: Any = None
    reasons: dict[str, str] = {}
    """Why the policy gave a job what it gave, by job id as text."""


class AgentChanged(Fact, frozen=True, kw_only=True):
    """The agent of `user` connected or went."""

    user: str
    connected: bool


AnyFact: TypeAlias = (
    JobSubmitted
    | JobStarted
    | RescaleRequested
    | JobRunning
    | StopRequested
    | SlotsReleased
    | JobProgressed
    | JobRequeued
    | JobResized
    | JobEnded
    | HostsChanged
    | PolicyUsed
    | PlanRejected
    | PlanAccepted
    | AgentChanged
)


class Event(_Struct, frozen=True, kw_only=True):
    """One line of the one event stream. `seq` has no gaps; `cause` is the id of the stimulus."""

    seq: int
    at: float
    by: str
    cause: str
    fact: AnyFact


# --- effects: orders that only the owner's agent carries out ----------------------------------------------------------


class Effect(_Struct, tag=True, frozen=True, kw_only=True):
    """An order, idempotent by (job, attempt, generation)."""

    job: JobId
    attempt: Count
    owner: str


class Launch(Effect, frozen=True, kw_only=True):
    """Start an attempt on these slots."""

    spec: JobSpec
    generation: Count
    slots: tuple[SlotId, ...]
    servers: Count = 0
    devices: dict[SlotId, str] = {}
    """GPU UUID by slot; empty on CPU hosts."""


class Rescale(Effect, frozen=True, kw_only=True):
    """Go on with exactly these slots."""

    generation: Count
    slots: tuple[SlotId, ...]
    servers: Count = 0
    devices: dict[SlotId, str] = {}
    draining: tuple[SlotId, ...] = ()
    """What the attempt still owes. It reports those without a process as released at once: an earlier generation that
    it never heard of, because this one overtook it, may have granted them."""


class Stop(Effect, frozen=True, kw_only=True):
    """End the attempt; with `preempt`, after a commit to disk."""

    how: Literal["cancel", "preempt", "time limit"]
    reason: Text = ""


AnyEffect: TypeAlias = Launch | Rescale | Stop


# --- what a policy sees and says --------------------------------------------------------------------------------------


class Speed(_Struct, frozen=True, kw_only=True, gc=False):
    """A measured point: samples per second at a size."""

    workers: int
    servers: int = 0
    samples_per_s: float


class Profile(_Struct, frozen=True, kw_only=True, gc=False):
    """What the core has learned of a job from its own progress events.

    `rate(n)` is samples/s on n workers: the measured point where there is one, else the fit T(n) = a/n + b + d*n of
    seconds per sample-batch (Optimus, EuroSys'18, all-reduce form), else None.
    """

    speeds: tuple[Speed, ...] = ()
    fit: tuple[float, float, float] | None = None
    """(a, b, d) of T(n) = a/n + b + d*n, in seconds per sample; None before there is a measurement."""
    done: float | None = None
    """Samples trained."""
    remaining: float | None = None
    """Samples to go; None when the job does not say how many there are."""
    rescale_cost_s: float = 2.0
    """Mean measured pause of this job's rescales; a default before the first."""
    noise_scale: float | None = None

    def rate(self, workers: int, servers: int = 0) -> float | None:
        """Samples per second at a size, or None when nothing is known."""
        if workers <= 0:
            return 0.0
        for point in self.speeds:
            if point.workers == workers and point.servers == servers:
                return point.samples_per_s
        if self.fit is None:
            return None
        a, b, d = self.fit
        seconds = a / workers + b + d * workers
        return 1.0 / seconds if seconds > 0 else None


class JobView(_Struct, frozen=True, kw_only=True, gc=False):
    """All that a policy may know of an unfinished job."""

    job: JobId
    owner: str
    group: str = ""
    name: str = ""
    phase: Phase
    submitted_at: float
    queued_at: float
    """Since when it waits (again); equal to `submitted_at` before the first start."""
    started_at: float | None = None
    """First start."""
    changed_at: float | None = None
    """Last start or rescale."""
    size: Size = Size(workers=0)
    """Leased now, draining slots not counted. Zero while `stopping`."""
    min_slots: int
    max_slots: int
    sizes: tuple[int, ...] = ()
    min_servers: int = 0
    max_servers: int = 0
    priority: int = 0
    preemptible: bool = True
    deadline_at: float | None = None
    max_time_s: float | None = None
    estimate_s: float | None = None
    attained_s: float = 0.0
    """Slot-seconds received so far, over all attempts."""
    run_s: float = 0.0
    """Seconds with slots so far."""
    preemptions: int = 0
    profile: Profile = Profile()

    def allows(self, workers: int) -> bool:
        """Whether the job can run on this many workers."""
        return self.min_slots <= workers <= self.max_slots and (not self.sizes or workers in self.sizes)


class HostView(_Struct, frozen=True, kw_only=True, gc=False):
    """A host as a policy sees it."""

    name: str
    capacity: int
    """Slots that are not out."""
    free: int
    draining: int = 0


class View(_Struct, frozen=True, kw_only=True):
    """All that a policy may know. Jobs are the unfinished ones in order of (submitted_at, job)."""

    now: float
    seed: int = 0
    hosts: tuple[HostView, ...]
    jobs: tuple[JobView, ...]
    memo: Any = None
    """What the same policy put into its last accepted plan."""
    weights: dict[str, float] = {}
    """Fair-share weight of users and groups; 1 when absent."""
    quotas: dict[str, int] = {}
    """Slots guaranteed to a user or group."""

    @property
    def capacity(self) -> int:
        """Slots of the pool that are not out."""
        return sum(host.capacity for host in self.hosts)


class Plan(_Struct, frozen=True, kw_only=True):
    """A policy's proposal: the size of every job that is to hold slots. An absent job holds none.

    A plan must be legal: known unfinished jobs, allowed sizes, in all at most the capacity. A job in phase `stopping`
    is left out. `memo` (JSON values, 64 KiB) comes back in the next view.
    """

    sizes: dict[JobId, Size]
    memo: Any = None
    reasons: dict[JobId, Text] = {}


class Policy(Protocol):
    """Decides who gets how many slots. Pure: no clock, no chance, no memory but the memo."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One sentence for the picker."""
    Options: ClassVar[type[Struct]]
    """Typed options with defaults; `msgspec.Meta(description=...)` documents each."""
    work_conserving: ClassVar[bool]
    """Whether it never leaves a slot idle that a job which it runs could use."""
    interval_s: ClassVar[float | None]
    """Ask again after this time even when nothing happened; None: only on events."""

    def __init__(self, options: Any) -> None: ...

    def plan(self, view: View) -> Plan:
        """The plan for this view."""
        ...


# --- what screens and commands see ------------------------------------------------------------------------------------


class JobInfo(_Struct, frozen=True, kw_only=True):
    """A job as `jobs`, the handle and the panel show it."""

    job: JobId
    owner: str
    spec: JobSpec
    phase: Phase
    attempt: int = 0
    generation: int = 0
    slots: tuple[SlotId, ...] = ()
    draining: tuple[SlotId, ...] = ()
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    reason: str = ""
    progress: Progress | None = None
    preemptions: int = 0
    restarts: int = 0


class SlotInfo(_Struct, frozen=True, kw_only=True):
    """A slot as the map shows it."""

    slot: SlotId
    state: Literal["free", "leased", "draining", "out"]
    job: JobId | None = None
    owner: str = ""
    device: str = ""
    reason: str = ""


class PolicyInfo(_Struct, frozen=True, kw_only=True):
    """A policy as the picker shows it."""

    name: str
    summary: str
    active: bool = False
    options: dict[str, Any] = {}
    """Present values for the active policy, defaults for the others."""
    schema: dict[str, Any] = {}
    """JSON schema of the options."""
