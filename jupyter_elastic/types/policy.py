"""Defines the input and the output of policies: the view of the pool, and the plan."""

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

    `rate(n)` gives samples per second on n workers: the measured speed if there is one, else by the fitted curve
    T(n) = a/n + b + d*n, in seconds per sample (Optimus, EuroSys'18, all-reduce form), else None.
    """

    speeds: tuple[Speed, ...] = ()
    fit: tuple[float, float, float] | None = None
    """Coefficients (a, b, d) of T(n) = a/n + b + d*n, in seconds per sample; None before there is a measurement."""
    done: float | None = None
    """Samples trained; None if the job does not report them."""
    remaining: float | None = None
    """Samples still to be trained; None if the job does not report a total."""
    rescale_cost_s: float = 0.5
    """Seconds that the job loses by its next change of size. For a job that can't regroup: all that it has done in this
    attempt, for it begins anew. For any other: the mean measured pause of its rescales; before its first rescale, the
    default, as Horovod usually takes 0.2 to 0.5 s."""
    start_cost_s: float = 0.0
    """Seconds that the job loses by its next start after a preemption: the mean time of its starts so far, from the
    order to the first step; 0 before the first."""
    noise_scale: float | None = None
    """Gradient noise scale that the job reports, in samples; None if it reports none."""
    reported_at: float | None = None
    """Time of the last progress report that came while the job had slots."""
    report_period_s: float | None = None
    """Longest of the last three intervals between progress reports, in seconds; None before the second report."""
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
    """Orders users and groups for the next free slot, if there isn't one for each of them."""

    begun: tuple[float, ...] = ()
    """Times at which the last jobs of the user or group began, the newest last; at most 32."""
    owed_s: float = 0.0
    """Slot-seconds that the user or group held while another user or group waited. Only differences between users mean
    something. A user without jobs who submits again keeps what they owed, within limits: at least what the present user
    who owes least does (per weight), and at most that plus the seconds for which the user's last job had slots."""


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
    """Slots that the job holds, without draining ones; zero in phase `stopping`."""
    min_slots: int
    """Minimum number of workers. For a running job that can't be rescaled, `min_slots` and `max_slots` are its present
    number: a plan gives it that number or nothing."""
    max_slots: int
    """Maximum number of workers."""
    sizes: tuple[int, ...] = ()
    min_servers: int = 0
    max_servers: int = 0
    """Maximum number of parameter servers; in pools with slots for servers alone, at most as many as fit there."""
    server_cost: int = 1
    """Slots of the pool's capacity that a parameter server takes: 1, as a worker does; 0 in pools of GPUs that have CPU
    slots for servers alone."""
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
    """True if the job would begin anew after a preemption, because without an elastic loop it commits nothing."""
    spared: bool = False
    """True if `preemptible` is False only because the job would lose all its work. A plan that takes the job's slots is
    still legal."""
    profile: Profile = Profile()

    def cost(self, size: Size) -> int:
        """Return the number of slots of the pool's capacity that the job takes at this size."""
        return size.workers + size.servers * self.server_cost

    def allows(self, workers: int) -> bool:
        """Return True if the job can run on this many workers: within its range and, if it has `sizes`, one of them."""
        return self.min_slots <= workers <= self.max_slots and (not self.sizes or workers in self.sizes)


class HostView(Record, frozen=True, kw_only=True, gc=False):
    """A host as a policy sees it."""

    name: str
    capacity: int
    """Slots that are not out."""
    free: int
    draining: int = 0
    until: float | None = None
    """Time at which the host ends, in seconds since the epoch; None if unknown. It is drained 120 s before its end."""


class View(Record, frozen=True, kw_only=True):
    """All that a policy may know. `jobs` are all unfinished jobs, ordered by (submitted_at, job)."""

    now: float
    """Seconds since the epoch, like all times that end in `_at`."""
    seed: int = 0
    """Seed of a policy's random numbers; a policy must use no other source of randomness."""
    hosts: tuple[HostView, ...]
    jobs: tuple[JobView, ...]
    memo: Any = None
    """The `memo` of this policy's last accepted plan; None if there is none."""
    server_slots: int | None = None
    """Number of slots for parameter servers alone that are not out; None if servers take the same slots as workers."""
    weights: dict[str, float] = {}
    """Fair-share weight of users and groups; 1 if absent."""
    quotas: dict[str, int] = {}
    """Guaranteed slots of users and groups."""
    used: dict[str, dict[str, float]] = {}
    """Slot-seconds used, by group ("" for users without a group) and then by user. Older use counts less: use of one
    half-life ago counts half. The half-life is the active policy's option `half_life_s`, or 7 days if the policy has no
    such option. The whole dict is empty in views for users who are not administrators."""
    turns: dict[str, dict[str, Turn]] = {}
    """Turns of users and groups that have unfinished jobs. The key "" holds groups, and users without a group; the key
    of a group holds its members."""
    lengths: dict[str, dict[str, tuple[float, ...]]] = {}
    """Lengths of completed jobs that reported no remaining work, by owner and then by the job's name: seconds at the
    minimum size, as in `estimate_s`; the newest last, at most 20 per name. The whole dict is empty in views for users
    who are not administrators."""

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
    """Texts for people, by job: why the job waits, grows, shrinks or pauses."""
    turn: tuple[JobId, ...] = ()
    """Waiting jobs in the order in which they get slots that become free, as far as the policy knows; only shown to
    people."""


class Policy(Protocol):
    """Divides the slots among jobs.

    Pure: it reads no clock, uses no randomness but `View.seed`, and remembers nothing between plans but the memo.

    Args:
        options: An instance of the class's `Options`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One sentence for the picker."""
    Options: ClassVar[type[Struct]]
    """Typed options with defaults; `msgspec.Meta(description=...)` documents each."""
    work_conserving: ClassVar[bool]
    """True if the policy claims to use every slot that would make one of the plan's jobs faster.

    The claim does not cover jobs that are starting or being rescaled, nor the exceptions that three options make. With
    `cooldown` a running job does not grow soon after a change of its size; with `payback` it does not grow if that
    saves too little time; with `theta` no job grows by a step that adds, per slot, less than this share of one slot's
    speed.
    """
    interval_s: ClassVar[float | None]
    """Seconds after which the policy is asked again even if nothing happened; None: only on events."""

    def __init__(self, options: Any) -> None: ...

    def plan(self, view: View) -> Plan:
        """Return the plan for this view, always the same one for the same view.

        Args:
            view: The present pool; not to be changed.

        Returns:
            The sizes of jobs. If the plan is illegal, an exception is raised or the call takes longer than 5 s, all
            jobs keep the slots that they have.
        """
        ...
