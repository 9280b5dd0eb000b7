"""What a policy sees and says."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from msgspec import Struct

from jupyter_elastic.types.vocabulary import JobId, Phase, Record, Size, Text


class Speed(Record, frozen=True, kw_only=True, gc=False):
    """A measured point: samples per second at a size."""

    workers: int
    servers: int = 0
    samples_per_s: float
    brief: bool = False
    """It was measured for a short time only: what else the machine did then may have decided it."""


class Profile(Record, frozen=True, kw_only=True, gc=False):
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
    rescale_cost_s: float = 0.5
    """What is lost by the next change of its size. Of a job that can't regroup all that it has done in this attempt: it
    would begin anew. Else the mean measured pause of this job's rescales; before the first, what rescales cost here:
    0.2 to 0.5 s (Horovod)."""
    start_cost_s: float = 0.0
    """What is lost by a pause of it: the mean of its own starts so far, from the order to the first step."""
    noise_scale: float | None = None
    reported_at: float | None = None
    """When it last reported with slots."""
    report_period_s: float | None = None
    """The longest of its last three pauses between reports; None before its second report."""
    losses: tuple[tuple[float, float], ...] = ()
    """Its loss curve as (samples, loss), in order of the samples: at most 32 points, the older the farther apart."""

    def rate(self, workers: int, servers: int = 0) -> float | None:
        """Samples per second at a size: measured, else by the fit.

        Args:
            workers: How many workers; 0 gives 0.0.
            servers: Parameter servers beside them.

        Returns:
            Samples per second; None when nothing is known of the job's speed.
        """
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


class Turn(Record, frozen=True, kw_only=True, gc=False):
    """What decides when a user or a group gets its next slot, where not all get some at once."""

    begun: tuple[float, ...] = ()
    """When its last jobs began, the newest last; at most 32."""
    owed_s: float = 0.0
    """Slot-seconds that it has used while another one waited. Only differences count: who comes owes as much as the
    least of those present, or at most its own last job on one slot more."""


class JobView(Record, frozen=True, kw_only=True, gc=False):
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
    """Of a job that runs and has not come to an elastic loop, least and most are what it holds: that or nothing."""
    max_slots: int
    sizes: tuple[int, ...] = ()
    min_servers: int = 0
    max_servers: int = 0
    """As many as there are slots for, whatever other jobs do with theirs, where servers have slots of their own."""
    server_cost: int = 1
    """Slots of the pool's capacity that a server takes: one as a worker, or none where servers have slots of their own,
    in pools of GPUs."""
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
    """Times that it was paused."""
    loses_all: bool = False
    """Whether it would begin anew if its slots were taken: it has no elastic loop, so it commits nothing."""
    spared: bool = False
    """Whether it is shown as not preemptible only because it would lose all; a plan may take its slots all the same."""
    profile: Profile = Profile()

    def cost(self, size: Size) -> int:
        """Slots of the pool's capacity that it takes on this size."""
        return size.workers + size.servers * self.server_cost

    def allows(self, workers: int) -> bool:
        """Whether the job can run on this many workers: within its range and, where it has some, one of its `sizes`."""
        return self.min_slots <= workers <= self.max_slots and (not self.sizes or workers in self.sizes)


class HostView(Record, frozen=True, kw_only=True, gc=False):
    """A host as a policy sees it."""

    name: str
    capacity: int
    """Slots that are not out."""
    free: int
    draining: int = 0
    until: float | None = None
    """When it goes, in seconds since the epoch; None: nobody knows. Two minutes before, it is drained."""


class View(Record, frozen=True, kw_only=True):
    """All that a policy may know. Jobs are the unfinished ones in order of (submitted_at, job)."""

    now: float
    """Seconds since the epoch, as all times that end in `_at`."""
    seed: int = 0
    """The only source of chance."""
    hosts: tuple[HostView, ...]
    jobs: tuple[JobView, ...]
    memo: Any = None
    """What the same policy put into its last accepted plan."""
    server_slots: int | None = None
    """Slots that are for parameter servers alone and not out; None: servers take slots as workers do."""
    weights: dict[str, float] = {}
    """Fair-share weight of users and groups; 1 when absent."""
    quotas: dict[str, int] = {}
    """Slots guaranteed to a user or group."""
    used: dict[str, dict[str, float]] = {}
    """Slot-seconds used, by group (empty: none) and user; those of one half-life ago count half. The half-life is the
    active policy's option `half_life_s`, 7 days where it has none. Who is no administrator sees none."""
    turns: dict[str, dict[str, Turn]] = {}
    """Of those who have unfinished jobs: under no name users without a group, and groups; by group its members."""
    lengths: dict[str, dict[str, tuple[float, ...]]] = {}
    """By owner and name, how long completed jobs were that did not report what was left: seconds on their least size,
    as `estimate_s`; the newest last, at most 20. Who is no administrator sees none."""

    @property
    def capacity(self) -> int:
        """Slots of the pool that are not out, those for servers alone aside."""
        return sum(host.capacity for host in self.hosts)


class Plan(Record, frozen=True, kw_only=True):
    """A policy's proposal: the size of every job that is to hold slots. An absent job holds none.

    A plan must be legal: known unfinished jobs, allowed sizes, which cost at most the capacity in all. A job in phase
    `stopping` is left out.
    """

    sizes: dict[JobId, Size]
    memo: Any = None
    """JSON values, at most 64 KiB; they come back in the next view."""
    reasons: dict[JobId, Text] = {}
    """What people read, by job: why it waits, grows, shrinks or pauses."""
    turn: tuple[JobId, ...] = ()
    """Waiting jobs that come next as slots come free, the first one first; for people, as far as the policy knows."""


class Policy(Protocol):
    """Decides who gets how many slots. Pure: no clock, no chance, no memory but the memo.

    Args:
        options: An instance of the class's `Options`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One sentence for the picker."""
    Options: ClassVar[type[Struct]]
    """Typed options with defaults; `msgspec.Meta(description=...)` documents each."""
    work_conserving: ClassVar[bool]
    """Whether it never leaves a slot idle by which a job that it runs would be faster.

    A job that is starting or being rescaled is left alone. Options may make exceptions; the claim holds for the rest.
    With `cooldown` and `payback` a running job does not grow that has just changed, or that would save too little;
    with `theta` nobody grows by a step that adds less than this share of one slot's speed.
    """
    interval_s: ClassVar[float | None]
    """Ask again after this time even when nothing happened; None: only on events."""

    def __init__(self, options: Any) -> None: ...

    def plan(self, view: View) -> Plan:
        """The plan for this view, the same each time it is asked.

        Args:
            view: The pool as it is; it is not to be changed.

        Returns:
            Who is to hold how many slots. A plan that is not legal, an exception or a missed deadline (5 s) leaves all
            as it is.
        """
        ...
