"""Input and output of policies: the view of the pool, and the plan."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from msgspec import Struct

from jupyter_elastic.types.vocabulary import JobId, Phase, Record, Size, Text


class Speed(Record, frozen=True, kw_only=True, gc=False):
    """Measured speed at one size, in samples per second."""

    workers: int
    servers: int = 0
    samples_per_s: float
    brief: bool = False
    """True if the speed was measured for a short time only, so other load of the machine may have affected it."""


class Profile(Record, frozen=True, kw_only=True, gc=False):
    """The core's knowledge of a job, learned from its own progress events.

    `rate(n)` is samples/s on n workers: the measured point if there is one, else the fit T(n) = a/n + b + d*n of
    seconds per sample-batch (Optimus, EuroSys'18, all-reduce form), else None.
    """

    speeds: tuple[Speed, ...] = ()
    fit: tuple[float, float, float] | None = None
    """Coefficients (a, b, d) of T(n) = a/n + b + d*n, in seconds per sample; None before there is a measurement."""
    done: float | None = None
    """Samples trained."""
    remaining: float | None = None
    """Samples to go; None if the job does not report a total."""
    rescale_cost_s: float = 0.5
    """Seconds that the job loses by its next change of size. A job that can't regroup begins anew and loses all that it
    has done in this attempt. For others the mean measured pause of the job's rescales; before the first, the usual
    cost: 0.2 to 0.5 s (Horovod)."""
    start_cost_s: float = 0.0
    """Seconds that a pause costs the job: the mean of its starts so far, from the order to the first step."""
    noise_scale: float | None = None
    reported_at: float | None = None
    """Time of the last report that came while the job had slots."""
    report_period_s: float | None = None
    """Longest of the last three pauses between reports, in seconds; None before the second report."""
    losses: tuple[tuple[float, float], ...] = ()
    """Loss curve as (samples, loss), in order of the samples: at most 32 points, older points farther apart."""

    def rate(self, workers: int, servers: int = 0) -> float | None:
        """Return the samples per second at a size: measured, else by the fit.

        Args:
            workers: Number of workers; 0 gives 0.0.
            servers: Number of parameter servers.

        Returns:
            Samples per second; None if nothing is known of the job's speed.
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
    """Data that order users and groups for the next slot if not all get one at once."""

    begun: tuple[float, ...] = ()
    """Times at which the last jobs began, the newest last; at most 32."""
    owed_s: float = 0.0
    """Slot-seconds used while another one waited. Only differences count: a user who comes back owes as much as the
    least of those present, and at most their own last job on one slot more."""


class JobView(Record, frozen=True, kw_only=True, gc=False):
    """All that a policy may know of an unfinished job."""

    job: JobId
    owner: str
    group: str = ""
    name: str = ""
    phase: Phase
    submitted_at: float
    queued_at: float
    """Time at which the job was last queued; equal to `submitted_at` before the first start."""
    started_at: float | None = None
    """Time of the first start."""
    changed_at: float | None = None
    """Time of the last start or rescale."""
    size: Size = Size(workers=0)
    """Leased slots without draining ones; zero while `stopping`."""
    min_slots: int
    """Minimum of workers. A running job without an elastic loop has its size as both: plans give that or nothing."""
    max_slots: int
    sizes: tuple[int, ...] = ()
    min_servers: int = 0
    max_servers: int = 0
    """Maximum number of servers; in pools with slots for servers alone no more than there are slots left for."""
    server_cost: int = 1
    """Slots of the pool's capacity that a server takes: one, as a worker does, or none if servers have slots of their
    own, in pools of GPUs."""
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
    loses_all: bool = False
    """True if the job would begin anew when its slots are taken: without an elastic loop it commits nothing."""
    spared: bool = False
    """True if only the loss of its work makes the job not preemptible; a plan may still take its slots."""
    profile: Profile = Profile()

    def cost(self, size: Size) -> int:
        """Return the number of slots of the pool's capacity that the job takes at this size."""
        return size.workers + size.servers * self.server_cost

    def allows(self, workers: int) -> bool:
        """True if the job can run on this many workers: within its range and, if it names `sizes`, one of them."""
        return self.min_slots <= workers <= self.max_slots and (not self.sizes or workers in self.sizes)


class HostView(Record, frozen=True, kw_only=True, gc=False):
    """A host as a policy sees it."""

    name: str
    capacity: int
    """Slots that are not out."""
    free: int
    draining: int = 0
    until: float | None = None
    """End of the host, in seconds since the epoch; None: unknown. The host is drained two minutes before."""


class View(Record, frozen=True, kw_only=True):
    """All that a policy may know. Jobs are the unfinished ones in order of (submitted_at, job)."""

    now: float
    """Seconds since the epoch, like all times that end in `_at`."""
    seed: int = 0
    """The only source of randomness."""
    hosts: tuple[HostView, ...]
    jobs: tuple[JobView, ...]
    memo: Any = None
    """Memo of the same policy's last accepted plan."""
    server_slots: int | None = None
    """Slots for parameter servers alone that are not out; None: servers take slots as workers do."""
    weights: dict[str, float] = {}
    """Fair-share weight of users and groups; 1 if absent."""
    quotas: dict[str, int] = {}
    """Guaranteed slots of users and groups."""
    used: dict[str, dict[str, float]] = {}
    """Slot-seconds used, by group (empty: none) and user, decayed: those of one half-life ago count half. The half-life
    is the active policy's option `half_life_s`, 7 days if it has none. Empty for users who are not administrators."""
    turns: dict[str, dict[str, Turn]] = {}
    """Turns of those with unfinished jobs: under "" users without a group, and groups; by group its members."""
    lengths: dict[str, dict[str, tuple[float, ...]]] = {}
    """Lengths of completed jobs that reported no remaining work, by owner and name: seconds at the minimum size, as
    `estimate_s`; the newest last, at most 20. Empty for users who are not administrators."""

    @property
    def capacity(self) -> int:
        """Slots of the pool that are not out, without those for servers alone."""
        return sum(host.capacity for host in self.hosts)


class Plan(Record, frozen=True, kw_only=True):
    """A policy's proposal: the size of every job that is to hold slots. An absent job holds none.

    A plan must be legal: known unfinished jobs and allowed sizes, which together cost at most the capacity. A job in
    phase `stopping` is left out.
    """

    sizes: dict[JobId, Size]
    memo: Any = None
    """JSON values, at most 64 KiB; the next view contains them."""
    reasons: dict[JobId, Text] = {}
    """Text for people, by job: why it waits, grows, shrinks or pauses."""
    turn: tuple[JobId, ...] = ()
    """Waiting jobs that come next as slots come free, the first one first; for people, as far as the policy knows."""


class Policy(Protocol):
    """Divides the slots among jobs. Pure: no clock, no chance, no memory but the memo.

    Args:
        options: An instance of the class's `Options`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One sentence for the picker."""
    Options: ClassVar[type[Struct]]
    """Typed options with defaults; `msgspec.Meta(description=...)` documents each."""
    work_conserving: ClassVar[bool]
    """True if the policy leaves no slot idle that would make one of its running jobs faster.

    Jobs that are starting or being rescaled are left alone. Options may make exceptions; the claim holds for the rest.
    With `cooldown` and `payback` a running job does not grow if it has just changed or would save too little; with
    `theta` no job grows by a step that adds less than this share of one slot's speed.
    """
    interval_s: ClassVar[float | None]
    """Seconds after which the policy is asked again even if nothing happened; None: only on events."""

    def __init__(self, options: Any) -> None: ...

    def plan(self, view: View) -> Plan:
        """Return the plan for this view, always the same one for the same view.

        Args:
            view: The present pool; not to be changed.

        Returns:
            The sizes of jobs. An illegal plan, an exception or a missed deadline (5 s) leaves the allocation as it is.
        """
        ...
