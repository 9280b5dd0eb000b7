"""State of the pool: the jobs, the holder of each slot, and what was learned. Only `evolve` changes it.

All of it follows from the events alone, so two states folded from the same events are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, Literal

from msgspec import Struct, field

from jupyter_elastic.scheduler.core.lengths import Lengths
from jupyter_elastic.scheduler.core.profile import Learned
from jupyter_elastic.scheduler.core.transitions import HOLDING
from jupyter_elastic.scheduler.core.turns import TurnQueue, places
from jupyter_elastic.scheduler.core.used import HALF_LIFE_S, UsedSlots
from jupyter_elastic.types import (
    AgentOrigin,
    Drain,
    GpuProcess,
    Host,
    JobId,
    JobSpec,
    KeyRegistered,
    Phase,
    Progress,
    Retention,
    SharesChanged,
    Size,
    SlotId,
)

FALLBACK = "fifo"
"""Policy of a new pool, and of a pool whose policy has failed."""
BY_KEY = ""
"""Key that stands for all users who connected by a key."""


class SlotState(Struct):
    """A slot of the pool."""

    host: str
    index: int
    device: str = ""
    out: str = ""
    """Reason why the slot can't be leased; empty if it can."""
    drained: bool = False
    """True while the slot takes no new work and the job on it is to leave."""
    gone: bool = False
    """True if the slot's host is lost; the entry is kept until the last lease is released."""
    job: JobId | None = None
    retained_by: JobId | None = None
    """Ended cell whose session still has memory on the slot's device."""
    draining: bool = False
    granted: int = 0
    """Generation in which the slot's job got the slot."""
    for_servers: bool = False
    foreign: tuple[GpuProcess, ...] = ()
    """Processes on the slot that don't belong to its job's owner."""

    @property
    def free(self) -> bool:
        """True if the slot can be leased now."""
        return self.job is None and self.retained_by is None and self.leasable

    @property
    def leasable(self) -> bool:
        """True if the slot can be leased once nobody holds it."""
        return not self.out and not self.drained

    @property
    def vacated(self) -> bool:
        """True if the slot is drained and no job runs there; until then it counts as capacity."""
        return self.drained and (self.job is None or self.draining)

    @property
    def away(self) -> bool:
        """True if plans can't give the slot away although it is not out: it is vacated, or a session retains it."""
        return self.vacated or self.retained_by is not None


NOTHING_LEARNED = Learned()
NOBODY_DIED: dict[SlotId, int] = {}
"""Shared by all jobs that have not started, because a queue is long; `evolve` gives each started job its own."""


class Job(Struct, kw_only=True, gc=False):
    """A job through all its attempts; it refers to nothing that refers back, so the collector finds no cycle."""

    job: JobId
    owner: str
    spec: JobSpec
    submitted_at: float
    submitted_seq: int = 0
    """Number of the event that made the job; none of its events is older."""
    queued_at: float
    phase: Phase = "queued"
    attempt: int = 0
    lease_s: float = 0.0
    """Seconds of the attempt's lease, which the agent renews; 0: it doesn't run out."""
    generation: int = 0
    """Newest generation that was requested."""
    settled: int = 0
    """Newest generation that has settled; behind `generation` while starting or rescaling."""
    slots: tuple[SlotId, ...] = ()
    """Slots that the job is to run on; the last `servers` of them are parameter servers. Empty while stopping."""
    servers: int = 0
    members: tuple[SlotId, ...] = ()
    """Slots that the job ran on when it last settled."""
    elastic: bool | None = None
    """True once the cell of this attempt has come to an elastic loop; None: not known yet."""
    draining: tuple[SlotId, ...] = ()
    leaving: bool = False
    """True if a slot of `slots` is drained: plans leave such a job its slots (`core/rules/drains.py`)."""
    started_at: float | None = None
    changed_at: float | None = None
    ended_at: float | None = None
    accounted_at: float = 0.0
    """Time up to which `attained_s` and `run_s` are counted."""
    attained_s: float = 0.0
    run_s: float = 0.0
    charged: int = 0
    """Slots of the job that count as held by its owner and group (`core/turns.py`)."""
    plain: bool = False
    """True if the cell ran without an elastic loop when it last ran, so it keeps nothing when its slots are taken."""
    preemptions: int = 0
    restarts: int = 0
    losses: int = 0
    """Attempts lost in a row without new progress."""
    furthest: float | None = None
    stop: Literal["", "cancel", "preempt", "time limit"] = ""
    """Kind of stop in progress; empty if the job is not being stopped."""
    retention: Retention | None = None
    """Slots that the job's session keeps after the job's end (`core/rules`); None: nothing."""
    withdrawn: bool = False
    """True if that session was ordered to end and to give back its exclusive slots."""
    reason: str = ""
    """Reason of the last start, rescale, stop, requeue or end."""
    progress: Progress | None = None
    learned: Learned = field(default_factory=lambda: NOTHING_LEARNED)
    deaths: int = 0
    """Workers that died unexpectedly in the present attempt, as far as they were reported."""
    died: dict[SlotId, int] = field(default_factory=lambda: NOBODY_DIED)
    """Slots whose worker died and has no successor yet, and the number of that death."""
    mishap: str = ""
    """Text for people about the last death and its outcome."""
    mishap_at: float = 0.0
    stays: str = ""
    """Reason, for people, why the job doesn't grow in this attempt until its range is changed; empty: it may grow."""
    resized_by: str = ""
    """User who last changed the job's range; empty if nobody has."""

    @property
    def preemptible(self) -> bool:
        """True if a policy may take all slots of the job."""
        return self.spec.preemptible and not self.spec.interactive

    @property
    def size(self) -> Size:
        """Workers and servers of the job, draining slots not counted."""
        return Size(workers=len(self.slots) - self.servers, servers=self.servers)

    @property
    def rigid(self) -> bool:
        """True while the job runs and its cell has not come to an elastic loop; only such a loop can regroup.

        Before a worker reports a loop nobody knows of one, and a cell without one would lose its work.
        """
        return self.phase in HOLDING and not self.elastic

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The rows in which the job counts, each with the name that it counts for."""
        return places(self.spec.group, self.owner)

    @property
    def key(self) -> tuple[float, JobId]:
        """Sort key of the job in the queue."""
        return self.submitted_at, self.job

    def largest(self, workers: int) -> int:
        """Return the largest allowed number of workers up to `workers`; 0 if there is none."""
        if self.phase == "queued" and self.spec.begins:
            return self.spec.begins if self.spec.begins <= workers else 0
        most = min(workers, self.spec.max_slots, self.size.workers if self.stays else workers)
        return max((size for size in self.spec.sizes or (most,) if self.spec.min_slots <= size <= most), default=0)

    def account(self, at: float, slots: int) -> None:
        """Count the time since the last count with `slots` slots, a number that must not have changed in between."""
        if self.slots:
            passed = max(at - self.accounted_at, 0.0)
            self.attained_s += passed * slots
            self.run_s += passed
        self.accounted_at = at


class State(Struct, kw_only=True):
    """State of the pool."""

    seq: int = 0
    at: float = 0.0
    """Time of the newest event. Events never go back in time, even if the clock does."""
    next_job: JobId = 1
    jobs: dict[JobId, Job] = field(default_factory=dict)
    """Unfinished jobs in the order of their submits, which is that of their numbers."""
    ended: dict[JobId, Job] = field(default_factory=dict)
    """Ended jobs that are not forgotten, in the order of their ends; kept apart so that no loop walks over them."""
    active: set[JobId] = field(default_factory=set)
    unfinished: dict[str, int] = field(default_factory=dict)
    """Number of unfinished jobs by owner; owners without such jobs are left out."""
    folders: dict[str, JobId] = field(default_factory=dict)
    """Unfinished jobs by their folders."""
    interactive: set[JobId] = field(default_factory=set)
    """Unfinished jobs that are interactive."""
    in_sessions: set[JobId] = field(default_factory=set)
    """Unfinished jobs that are cells of sessions."""
    retaining: set[JobId] = field(default_factory=set)
    """Ended jobs whose sessions keep slots."""
    yielded: dict[JobId, int] = field(default_factory=dict)
    """Workers that running jobs have given up for interactive jobs and have not got back."""
    used: dict[str, dict[str, UsedSlots]] = field(default_factory=dict)
    """Decayed slot-seconds by group (empty: none) and user, up to the last count of each job."""
    half_life_s: float = HALF_LIFE_S
    rows: dict[str, TurnQueue] = field(default_factory=dict)
    """Rows of users and groups that share slots: under "" users without group, and groups; by group its members."""
    lengths: Lengths = field(default_factory=dict)
    """Lengths of completed jobs that reported no remaining work; `noted` makes a new mapping, since views hold it."""
    keys: dict[str, JobId] = field(default_factory=dict)
    """Jobs by the id of their submit, so that a repeated submit returns the job that the first one made."""
    hosts: tuple[Host, ...] = ()
    slots: dict[SlotId, SlotState] = field(default_factory=dict)
    """Slots in the order of the hosts, then slots of lost hosts that are still held."""
    apart: bool = False
    """True if some slots are for servers alone; servers then take no other slots."""
    drains: tuple[Drain, ...] = ()
    agents: dict[str, bool] = field(default_factory=dict)
    """Users whose agent has ever connected; True while it is connected."""
    ids: dict[str, int] = field(default_factory=dict)
    """UNIX ids of owners of known jobs; a name stays with its id as long as such a job is remembered."""
    places: dict[str, AgentOrigin] = field(default_factory=dict)
    """Origin of each user's present or last agent, from which the user's running jobs were launched."""
    shares: SharesChanged = SharesChanged()
    """Latest content of the shares file, kept so that the journal tells the entitlements of every moment."""
    registered: dict[str, KeyRegistered] = field(default_factory=dict)
    """Public keys that may connect for a term, beside those of the administrator's table."""
    policy: str = FALLBACK
    policy_options: dict[str, Any] = field(default_factory=dict)
    policy_source: str = ""
    memos: dict[str, Any] = field(default_factory=dict)
    """Memo of the last accepted plan, by policy."""
    reasons: dict[JobId, str] = field(default_factory=dict)
    """Latest reason that the policy gave, by unfinished job."""
    turn: tuple[JobId, ...] = ()
    """Jobs that the policy would start next as slots come free, in this order, as far as it says so."""
    reached: dict[str, int] = field(default_factory=dict)
    """Result of `reachable` by user who can't reach all hosts, and under `BY_KEY` for all who connect by a key."""
    rejections: int = 0
    """Plans of the present policy that were refused in a row."""

    @property
    def capacity(self) -> int:
        """Slots that plans can give away or leave to their holders, without those for servers alone."""
        return self._usable(for_servers=False)

    @property
    def server_capacity(self) -> int | None:
        """Capacity of the slots for servers alone; None: servers take slots as workers do."""
        return self._usable(for_servers=True) if self.apart else None

    def _usable(self, *, for_servers: bool) -> int:
        reported = (slot for host in self.hosts for slot in host.slots)
        present = zip(reported, self.slots.values(), strict=False)
        return sum(not slot.out and not entry.away for slot, entry in present if slot.for_servers == for_servers)

    @property
    def maintenance(self) -> Drain | None:
        """The drain of the whole pool; None if there is none."""
        return next((drain for drain in self.drains if not drain.target), None)

    @property
    def total(self) -> int:
        """Slots of all present hosts, including out and drained slots, without those for servers alone."""
        return sum(not slot.for_servers for host in self.hosts for slot in host.slots)

    @property
    def server_total(self) -> int:
        """Slots for servers alone of all present hosts."""
        return sum(slot.for_servers for host in self.hosts for slot in host.slots)

    def find(self, job: JobId) -> Job | None:
        """Return an unfinished or ended job; None if there is none of that number."""
        return self.jobs.get(job) or self.ended.get(job)

    def owner_of(self, job: JobId) -> str | None:
        """Return the user who submitted the job; None if there is none of that number."""
        found = self.find(job)
        return found.owner if found else None

    def absent(self, owner: str) -> bool:
        """True if this user's agent is known to be away; `Agents.expect` reports an agent never seen as away."""
        return not self.agents.get(owner, True)

    def ignored(self, job: Job) -> bool:
        """True if plans have no effect on the job.

        Such a job is stopping, or waits for its owner's agent to come back, for an earlier cell of its session, or for
        hosts that its owner can't reach.
        """
        waits = job.phase == "queued" and (self.absent(job.owner) or self.before(job) is not None)
        return waits or self.kept_away(job) or job.phase == "stopping"

    def kept_away(self, job: Job) -> bool:
        """True if the job is queued and its owner can't reach as many slots as it needs."""
        return job.phase == "queued" and self.reachable(job.owner) < self.needs(job.spec)

    def why_not(self, owner: str, host: Host) -> str:
        """Return the reason why this user can't reach the host now; empty if none is known."""
        if host.local_users and owner not in self.ids:
            return f"{owner} comes by a key, and only users of the pool's machine get there"
        return host.unreachable.get(owner, "")

    def reachable(self, owner: str) -> float:
        """Return the number of slots, out ones excluded, on hosts that this user can reach; infinity if all hosts."""
        return self.reached.get(owner, inf if owner in self.ids else self.reached.get(BY_KEY, inf))

    def before(self, job: Job) -> JobId | None:
        """Return the first unfinished job of the session if it comes before this one; None otherwise."""
        if not job.spec.session:
            return None
        return next(
            (number for number in sorted(self.in_sessions) if number < job.job and self.same_session(number, job)), None
        )

    def bound_to(self, spec: JobSpec) -> str:
        """Return the only host on which such a job can start; empty if any will do."""
        host = spec.host
        return host if len(self.hosts) > 1 and any(one.name == host for one in self.hosts) else ""

    def same_session(self, number: JobId, job: Job) -> bool:
        """True if the unfinished job `number` belongs to the same session as `job`."""
        other = self.jobs[number]
        return (other.owner, other.spec.session) == (job.owner, job.spec.session)

    def coming(self, job: Job, slots: Iterable[SlotId], *, for_servers: bool = False) -> int:
        """Count the given slots of a job that can be leased once it releases them; 0 while its agent is away."""
        if self.absent(job.owner):
            return 0
        entries = (self.slots[slot] for slot in slots)
        return sum(entry.leasable for entry in entries if entry.for_servers == for_servers)

    def charged(self, slots: Iterable[SlotId]) -> int:
        """Count the slots that are charged as used; slots for servers alone are not."""
        entries = (self.slots.get(slot) for slot in slots)
        return sum(entry is None or not entry.for_servers for entry in entries)

    def needs(self, spec: JobSpec) -> int:
        """Return the number of slots, without those for servers alone, that a job needs to start."""
        return starts_with(spec) + (0 if self.apart else spec.min_servers)

    def retained(self, *, exclusive: bool) -> list[Job]:
        """Return the ended jobs whose sessions keep slots of this kind (`Retention`), oldest first."""
        jobs = (self.ended[job] for job in sorted(self.retaining))
        return [job for job in jobs if job.retention is not None and job.retention.exclusive == exclusive]

    def active_jobs(self) -> list[Job]:
        """Return the unfinished jobs that aren't queued, oldest first."""
        return [self.jobs[job] for job in sorted(self.active)]

    def free(self, *, for_servers: bool = False) -> Iterator[tuple[str, SlotId]]:
        """Yield (host, slot) of every free slot in the pool's order, only of the given kind."""
        return (
            (entry.host, slot) for slot, entry in self.slots.items() if entry.free and entry.for_servers == for_servers
        )

    def hosts_of(self, slots: tuple[SlotId, ...]) -> list[str]:
        """Return the host of each slot."""
        return [self.slots[slot].host for slot in slots]


def starts_with(spec: JobSpec) -> int:
    """Return the number of workers that a job needs to start."""
    return spec.begins or least_workers(spec)


def least_workers(spec: JobSpec) -> int:
    """Return the number of workers below which a job can't go on once its size can change."""
    return min((n for n in spec.sizes if n >= spec.min_slots), default=spec.min_slots)


def limit_at(job: Job) -> float | None:
    """Return the time at which the job reaches its time limit if it keeps running; None: never."""
    if job.spec.max_time_s is None or job.phase == "stopping" or not job.slots:
        return None
    return job.accounted_at + job.spec.max_time_s - job.run_s
