"""The state of the pool: who asked for what, who holds which slot, what was learned. Only `evolve` changes it.

Everything here follows from the events alone, so two states folded from the same events are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, Literal

from msgspec import Struct, field

from jupyter_elastic.scheduler.core.lengths import Lengths
from jupyter_elastic.scheduler.core.profile import Learned
from jupyter_elastic.scheduler.core.transitions import HOLDING
from jupyter_elastic.scheduler.core.turns import Row, places
from jupyter_elastic.scheduler.core.used import HALF_LIFE_S, Used
from jupyter_elastic.types import (
    AgentPlace,
    Drain,
    GpuProcess,
    Host,
    JobId,
    JobSpec,
    KeyRegistered,
    Phase,
    Progress,
    SharesChanged,
    Size,
    SlotId,
)

FALLBACK = "fifo"
"""The policy that a pool begins with, and falls back to."""
BY_KEY = ""
"""Stands for all users who have come by a key."""


class SlotState(Struct):
    """One slot. Free: no job and not out."""

    host: str
    index: int
    device: str = ""
    out: str = ""
    """Why it can't be leased; empty when it can."""
    drained: bool = False
    """Whether it is to take nothing new: what holds it leaves it."""
    gone: bool = False
    """Its host is lost; its entry is kept until the last lease is released."""
    job: JobId | None = None
    pinned: JobId | None = None
    """The ended cell whose session's memory is on its device still."""
    draining: bool = False
    granted: int = 0
    """The generation in which its job got it."""
    for_servers: bool = False
    """As in `Slot`."""
    foreign: tuple[GpuProcess, ...] = ()
    """Processes on it that are not of its job's owner."""

    @property
    def free(self) -> bool:
        """Whether it can be leased now."""
        return self.job is None and self.pinned is None and self.leasable

    @property
    def leasable(self) -> bool:
        """Whether it can be leased once nobody holds it."""
        return not self.out and not self.drained

    @property
    def vacated(self) -> bool:
        """Whether it is drained and nobody runs there any more; until then it counts among what plans give away."""
        return self.drained and (self.job is None or self.draining)

    @property
    def away(self) -> bool:
        """Whether plans can't give it away, though it is not out: it is vacated, or a session keeps it."""
        return self.vacated or self.pinned is not None


NOTHING_LEARNED = Learned()
NOBODY_DIED: dict[SlotId, int] = {}
"""Of a job that has not started; all share them, because a queue is long. `evolve` gives it its own."""


class Job(Struct, kw_only=True, gc=False):
    """One job through all its attempts. Nothing in it leads back to it, so no cycle is left to the collector."""

    job: JobId
    owner: str
    spec: JobSpec
    submitted_at: float
    submitted_seq: int = 0
    """Of the event that made it: none of its events is older."""
    queued_at: float
    phase: Phase = "queued"
    attempt: int = 0
    lease_s: float = 0.0
    """The term of its lease, which its agent renews; 0: it doesn't run out."""
    generation: int = 0
    """The newest one asked for."""
    settled: int = 0
    """The newest one that stands; behind `generation` while starting or rescaling."""
    slots: tuple[SlotId, ...] = ()
    """What it is to run on; the last `servers` of them are parameter servers. Empty while stopping."""
    servers: int = 0
    members: tuple[SlotId, ...] = ()
    """What it really ran on when it last settled."""
    elastic: bool | None = None
    """Whether the cell of this attempt has come to an elastic loop; None: nothing is known yet."""
    draining: tuple[SlotId, ...] = ()
    leaving: bool = False
    """Whether a slot of `slots` is drained: plans leave such a job what it has (`core/drains.py`)."""
    started_at: float | None = None
    changed_at: float | None = None
    ended_at: float | None = None
    accounted_at: float = 0.0
    """Up to when `attained_s` and `run_s` are counted."""
    attained_s: float = 0.0
    run_s: float = 0.0
    charged: int = 0
    """Slots of it that are in the books of its owner and group (`core/turns.py`)."""
    plain: bool = False
    """Whether its cell ran without an elastic loop when it last ran: it keeps nothing when its slots are taken."""
    preemptions: int = 0
    restarts: int = 0
    losses: int = 0
    """Attempts lost in a row without new progress."""
    furthest: float | None = None
    stop: Literal["", "cancel", "preempt", "time limit"] = ""
    """How it is being stopped; empty when it isn't."""
    held: int = 0
    """Slots that its session keeps after its end, until `held_until` unless somebody waits."""
    held_until: float | None = None
    pinned: tuple[SlotId, ...] = ()
    """Slots that its session keeps after its end (`core/pins.py`), until `pinned_until` at the latest."""
    pinned_why: str = ""
    pinned_until: float | None = None
    unpinning: bool = False
    """Whether that session was told to end."""
    reason: str = ""
    """Why it is where it is: of the last start, rescale, stop, requeue or end."""
    progress: Progress | None = None
    learned: Learned = field(default_factory=lambda: NOTHING_LEARNED)
    deaths: int = 0
    """Workers that died unasked in the present attempt, as far as they were reported."""
    died: dict[SlotId, int] = field(default_factory=lambda: NOBODY_DIED)
    """Slots whose worker died and has no successor yet, and the number of that death."""
    mishap: str = ""
    """The last death, for people, and what came of it."""
    mishap_at: float = 0.0
    stays: str = ""
    """Why it doesn't grow in this attempt until its range is changed, for people; empty: it may."""
    resized_by: str = ""
    """Who changed its range last; empty when nobody has."""

    @property
    def preemptible(self) -> bool:
        """Whether a policy may take all its slots."""
        return self.spec.preemptible and not self.spec.interactive

    @property
    def size(self) -> Size:
        """What it holds, draining slots not counted."""
        return Size(workers=len(self.slots) - self.servers, servers=self.servers)

    @property
    def rigid(self) -> bool:
        """Whether its size stays: it runs, and its cell has not come to an elastic loop, in which alone it can regroup.

        Until a worker reports that it is unknown, and a cell that is no such loop would lose what it has done.
        """
        return self.phase in HOLDING and not self.elastic

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The rows in which it counts, and for whom."""
        return places(self.spec.group, self.owner)

    @property
    def key(self) -> tuple[float, JobId]:
        """The order among jobs."""
        return self.submitted_at, self.job

    def largest(self, workers: int) -> int:
        """The largest allowed number of workers that is at most `workers`; 0 if there is none."""
        if self.phase == "queued" and self.spec.begins:
            return self.spec.begins if self.spec.begins <= workers else 0
        most = min(workers, self.spec.max_slots, self.size.workers if self.stays else workers)
        return max((size for size in self.spec.sizes or (most,) if self.spec.min_slots <= size <= most), default=0)

    def account(self, at: float, slots: int) -> None:
        """Count the time since the last count with so many slots, which must not have changed in between."""
        if self.slots:
            passed = max(at - self.accounted_at, 0.0)
            self.attained_s += passed * slots
            self.run_s += passed
        self.accounted_at = at


class State(Struct, kw_only=True):
    """The state of the pool."""

    seq: int = 0
    at: float = 0.0
    """Time of the newest event. Events never go back in time, even if the clock does."""
    next_job: JobId = 1
    jobs: dict[JobId, Job] = field(default_factory=dict)
    """The unfinished ones, in the order of their submits, which is that of their numbers."""
    ended: dict[JobId, Job] = field(default_factory=dict)
    """The others, until they are forgotten; kept aside so that nothing walks over them, in order of their end."""
    active: set[JobId] = field(default_factory=set)
    unfinished: dict[str, int] = field(default_factory=dict)
    """How many unfinished jobs an owner has; those who have none are left out."""
    folders: dict[str, JobId] = field(default_factory=dict)
    """The unfinished jobs by their folders."""
    interactive: set[JobId] = field(default_factory=set)
    """The unfinished jobs that are interactive."""
    in_sessions: set[JobId] = field(default_factory=set)
    """The unfinished jobs that are cells of sessions."""
    held: set[JobId] = field(default_factory=set)
    """The ended ones whose sessions keep slots."""
    pinned: set[JobId] = field(default_factory=set)
    """The ended ones whose sessions' memory is on slots still."""
    yielded: dict[JobId, int] = field(default_factory=dict)
    """Workers that running jobs have given up for interactive ones and have not got back."""
    used: dict[str, dict[str, Used]] = field(default_factory=dict)
    """What was used, by group (empty: none) and user, up to the last count of each job."""
    half_life_s: float = HALF_LIFE_S
    rows: dict[str, Row] = field(default_factory=dict)
    """Who shares slots with whom: at the top (no name) users without group, and groups; the members of each group."""
    lengths: Lengths = field(default_factory=dict)
    """Of completed silent jobs; `noted` makes it anew, since views hold it."""
    keys: dict[str, JobId] = field(default_factory=dict)
    """Submits by their id: a repeated one is answered with the job it made."""
    hosts: tuple[Host, ...] = ()
    slots: dict[SlotId, SlotState] = field(default_factory=dict)
    """In the order of the hosts, then those of lost hosts that are still held."""
    apart: bool = False
    """Whether there are slots for servers alone, so that servers take no others."""
    drains: tuple[Drain, ...] = ()
    agents: dict[str, bool] = field(default_factory=dict)
    """Users whose agent was ever seen, and whether it is connected."""
    ids: dict[str, int] = field(default_factory=dict)
    """UNIX ids of owners of jobs, as long as one of these is remembered: their names are nobody else's."""
    places: dict[str, AgentPlace] = field(default_factory=dict)
    """Where the agent of a user is, or was last: what runs was launched there."""
    shares: SharesChanged = SharesChanged()
    """What the file of shares said last; kept so that the journal tells for every time what was whose."""
    registered: dict[str, KeyRegistered] = field(default_factory=dict)
    """Public keys that may connect for a term, beside those of the administrator's table."""
    policy: str = FALLBACK
    policy_options: dict[str, Any] = field(default_factory=dict)
    policy_source: str = ""
    memos: dict[str, Any] = field(default_factory=dict)
    """What each policy asked to be reminded of."""
    reasons: dict[JobId, str] = field(default_factory=dict)
    """What the policy last said of an unfinished job."""
    turn: tuple[JobId, ...] = ()
    """Jobs that the policy would start next as slots come free, in this order, as far as it says so."""
    reached: dict[str, int] = field(default_factory=dict)
    """By user who can't reach all hosts, and under `BY_KEY` of all who come by a key, what `reachable` says."""
    rejections: int = 0
    """Plans of the present policy that were refused in a row."""

    @property
    def capacity(self) -> int:
        """Slots that plans can give away, or leave to who has them; those for servers alone aside."""
        return self._usable(for_servers=False)

    @property
    def server_capacity(self) -> int | None:
        """The same of slots for servers alone; None: servers take slots as workers do."""
        return self._usable(for_servers=True) if self.apart else None

    def _usable(self, *, for_servers: bool) -> int:
        reported = (slot for host in self.hosts for slot in host.slots)
        present = zip(reported, self.slots.values(), strict=False)
        return sum(not slot.out and not entry.away for slot, entry in present if slot.for_servers == for_servers)

    @property
    def maintenance(self) -> Drain | None:
        """The drain of the whole pool."""
        return next((drain for drain in self.drains if not drain.target), None)

    @property
    def total(self) -> int:
        """Slots of all present hosts, those out or drained among them, those for servers alone aside."""
        return sum(not slot.for_servers for host in self.hosts for slot in host.slots)

    @property
    def server_total(self) -> int:
        """The same of slots for servers alone."""
        return sum(slot.for_servers for host in self.hosts for slot in host.slots)

    def find(self, job: JobId) -> Job | None:
        """An unfinished or ended job."""
        return self.jobs.get(job) or self.ended.get(job)

    def owner_of(self, job: JobId) -> str | None:
        """Who submitted the job; None if there is none of that number."""
        found = self.find(job)
        return found.owner if found else None

    def absent(self, owner: str) -> bool:
        """Whether this user's agent is known to be away; the daemon says so of one never seen (`Agents.expect`)."""
        return not self.agents.get(owner, True)

    def ignored(self, job: Job) -> bool:
        """Whether plans have no say about the job.

        It is stopping, or waits for its owner's agent to come back, for an earlier cell of its session, or for hosts
        that its owner can't reach.
        """
        waits = job.phase == "queued" and (self.absent(job.owner) or self.before(job) is not None)
        return waits or self.kept_away(job) or job.phase == "stopping"

    def kept_away(self, job: Job) -> bool:
        """Whether it is queued, and its owner can't reach as many slots as it needs."""
        return job.phase == "queued" and self.reachable(job.owner) < self.needs(job.spec)

    def why_not(self, owner: str, host: Host) -> str:
        """Why this user can't reach the host now; empty: nothing speaks against it."""
        if host.local_users and owner not in self.ids:
            return f"{owner} comes by a key, and only users of the pool's machine get there"
        return host.unreachable.get(owner, "")

    def reachable(self, owner: str) -> float:
        """Slots of hosts that this user can reach, those that are out aside; infinite for who can reach all."""
        return self.reached.get(owner, inf if owner in self.ids else self.reached.get(BY_KEY, inf))

    def before(self, job: Job) -> JobId | None:
        """The unfinished job of the same session that comes first; None when this one does."""
        if not job.spec.session:
            return None
        return next(
            (number for number in sorted(self.in_sessions) if number < job.job and self.same_session(number, job)), None
        )

    def bound_to(self, spec: JobSpec) -> str:
        """The one host on which such a job can start; empty when any will do."""
        host = spec.host
        return host if len(self.hosts) > 1 and any(one.name == host for one in self.hosts) else ""

    def same_session(self, number: JobId, job: Job) -> bool:
        """Whether this unfinished job is a cell of that one's session."""
        other = self.jobs[number]
        return (other.owner, other.spec.session) == (job.owner, job.spec.session)

    def coming(self, job: Job, slots: Iterable[SlotId], *, for_servers: bool = False) -> int:
        """How many of a job's slots can be leased once it has released them; none if nobody is there to do so."""
        if self.absent(job.owner):
            return 0
        entries = (self.slots[slot] for slot in slots)
        return sum(entry.leasable for entry in entries if entry.for_servers == for_servers)

    def charged(self, slots: Iterable[SlotId]) -> int:
        """How many of these slots count as used: those for servers alone are nobody's share."""
        entries = (self.slots.get(slot) for slot in slots)
        return sum(entry is None or not entry.for_servers for entry in entries)

    def needs(self, spec: JobSpec) -> int:
        """Slots without which such a job can't start, those for servers alone aside."""
        return starts_with(spec) + (0 if self.apart else spec.min_servers)

    def active_jobs(self) -> list[Job]:
        """Unfinished jobs that aren't queued, oldest first."""
        return [self.jobs[job] for job in sorted(self.active)]

    def free(self, *, for_servers: bool = False) -> Iterator[tuple[str, SlotId]]:
        """(host, slot) of every free slot in the pool's order, either without those for servers alone or of those."""
        return (
            (entry.host, slot) for slot, entry in self.slots.items() if entry.free and entry.for_servers == for_servers
        )

    def hosts_of(self, slots: tuple[SlotId, ...]) -> list[str]:
        """The host of each slot."""
        return [self.slots[slot].host for slot in slots]


def starts_with(spec: JobSpec) -> int:
    """Workers without which such a job can't start."""
    return spec.begins or least_workers(spec)


def least_workers(spec: JobSpec) -> int:
    """Workers without which such a job can't go on, once its size can change."""
    return min((n for n in spec.sizes if n >= spec.min_slots), default=spec.min_slots)


def limit_at(job: Job) -> float | None:
    """When the job's running time is used up if it goes on; None: never."""
    if job.spec.max_time_s is None or job.phase == "stopping" or not job.slots:
        return None
    return job.accounted_at + job.spec.max_time_s - job.run_s
