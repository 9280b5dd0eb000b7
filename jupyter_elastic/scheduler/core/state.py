"""The state of the pool: who asked for what, who holds which slot, what was learned. Only `evolve` changes it.

Knows events and what each does to the state. Judges nothing and can't fail: whether an event may happen was decided
before it was written down, and a replayed journal is true by definition. Everything here follows from the events
alone, so two states folded from the same events are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import exp2, expm1, isfinite, log
from sys import intern
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from jupyter_elastic.scheduler.core.profile import Learned
from jupyter_elastic.scheduler.core.transitions import HOLDING, after
from jupyter_elastic.types import (
    ENDED,
    AgentChanged,
    AgentPlace,
    AnyEventData,
    AsksRefused,
    BooksRestored,
    Drain,
    DrainsChanged,
    Event,
    GpuProcess,
    Host,
    HostsChanged,
    JobEnded,
    JobId,
    JobProgressed,
    JobRequeued,
    JobResized,
    JobRunning,
    JobsForgotten,
    JobSpec,
    JobStarted,
    JobSubmitted,
    KeyRegistered,
    KeyRevoked,
    Phase,
    PlanAccepted,
    PlanRejected,
    PolicyUsed,
    Progress,
    RescaleRequested,
    SharesChanged,
    Size,
    SlotId,
    SlotsReleased,
    StopRequested,
    WorkerDied,
    WorkerReplaced,
)
from jupyter_elastic.types.texts import in_use_by

FALLBACK = "fifo"
"""The policy that a pool begins with, and falls back to."""


HALF_LIFE_S = 7 * 86_400.0
"""After so long what was used counts half, unless the policy's options say another time (Slurm's default)."""


class Used(Struct):
    """Slot-seconds that decay: those of one half-life ago count half.

    Source: Slurm's priority/multifactor (PriorityDecayHalfLife), here without its steps of five minutes.
    """

    slot_s: float
    at: float

    def add(self, slots: int, since: float, at: float, half_life_s: float) -> None:
        """Count `slots` that were held from `since` until `at`."""
        self.slot_s = self.now(at, half_life_s) + used_s(slots, at - since, half_life_s)
        self.at = at

    def now(self, at: float, half_life_s: float) -> float:
        """What it is at that time, with nothing used since."""
        return self.slot_s * exp2(-max(at - self.at, 0.0) / half_life_s)


def used_s(slots: int, passed_s: float, half_life_s: float) -> float:
    """What `slots` count at the end of a time for which they were held."""
    return slots * half_life_s / log(2.0) * -expm1(-log(2.0) * max(passed_s, 0.0) / half_life_s)


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
    draining: bool = False
    granted: int = 0
    """The generation in which its job got it."""
    foreign: tuple[GpuProcess, ...] = ()
    """Processes on it that are not of its job's owner."""

    @property
    def free(self) -> bool:
        """Whether it can be leased now."""
        return self.job is None and self.leasable

    @property
    def leasable(self) -> bool:
        """Whether it can be leased once nobody holds it."""
        return not self.out and not self.drained

    @property
    def vacated(self) -> bool:
        """Whether it is drained and nobody runs there any more; until then it counts among what plans give away."""
        return self.drained and (self.job is None or self.draining)


_NOTHING_LEARNED = Learned()
_NOBODY_DIED: dict[SlotId, int] = {}
"""Of a job that has not started; all share them, because a queue is long. `_started` gives it its own."""


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
    preemptions: int = 0
    restarts: int = 0
    losses: int = 0
    """Attempts lost in a row without new progress."""
    furthest: float | None = None
    stop: Literal["", "cancel", "preempt", "time limit"] = ""
    """How it is being stopped; empty when it isn't."""
    reason: str = ""
    """Why it is where it is: of the last start, rescale, stop, requeue or end."""
    progress: Progress | None = None
    learned: Learned = field(default_factory=lambda: _NOTHING_LEARNED)
    deaths: int = 0
    """Workers that died unasked in the present attempt, as far as they were reported."""
    died: dict[SlotId, int] = field(default_factory=lambda: _NOBODY_DIED)
    """Slots whose worker died and has no successor yet, and the number of that death."""
    mishap: str = ""
    """The last death, for people, and what came of it."""
    mishap_at: float = 0.0
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
    def key(self) -> tuple[float, JobId]:
        """The order among jobs."""
        return self.submitted_at, self.job

    def largest(self, workers: int) -> int:
        """The largest allowed number of workers that is at most `workers`; 0 if there is none."""
        most = min(workers, self.spec.max_slots)
        return max((size for size in self.spec.sizes or (most,) if self.spec.min_slots <= size <= most), default=0)

    def account(self, at: float) -> None:
        """Count the time since the last count; slots must not have changed in between."""
        if self.slots:
            passed = max(at - self.accounted_at, 0.0)
            self.attained_s += passed * len(self.slots)
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
    interactive: set[JobId] = field(default_factory=set)
    """The unfinished jobs that are interactive."""
    yielded: dict[JobId, int] = field(default_factory=dict)
    """Workers that running jobs have given up for interactive ones and have not got back."""
    used: dict[str, dict[str, Used]] = field(default_factory=dict)
    """What was used, by group (empty: none) and user, up to the last count of each job."""
    half_life_s: float = HALF_LIFE_S
    keys: dict[str, JobId] = field(default_factory=dict)
    """Submits by their id: a repeated one is answered with the job it made."""
    hosts: tuple[Host, ...] = ()
    slots: dict[SlotId, SlotState] = field(default_factory=dict)
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
    rejections: int = 0
    """Plans of the present policy that were refused in a row."""

    @property
    def capacity(self) -> int:
        """Slots that plans can give away, or leave to who has them."""
        present = ((slot, self.slots[host.slot_id(slot.index)]) for host in self.hosts for slot in host.slots)
        return sum(not slot.out and not entry.vacated for slot, entry in present)

    @property
    def maintenance(self) -> Drain | None:
        """The drain of the whole pool."""
        return next((drain for drain in self.drains if not drain.target), None)

    @property
    def total(self) -> int:
        """Slots of all present hosts, those out or drained among them."""
        return sum(len(host.slots) for host in self.hosts)

    def find(self, job: JobId) -> Job | None:
        """An unfinished or ended job."""
        return self.jobs.get(job) or self.ended.get(job)

    def owner_of(self, job: JobId) -> str | None:
        """Who submitted the job; None if there is none of that number."""
        found = self.find(job)
        return found.owner if found else None

    def absent(self, owner: str) -> bool:
        """Whether this user's agent was here and went. One never seen is on its way: the first submit starts it."""
        return not self.agents.get(owner, True)

    def ignored(self, job: Job) -> bool:
        """Whether plans have no say about the job: it is stopping, or waits for its owner's agent to come back."""
        return job.phase == "stopping" or (job.phase == "queued" and self.absent(job.owner))

    def coming(self, job: Job, slots: Iterable[SlotId]) -> int:
        """How many of a job's slots can be leased once it has released them; none if nobody is there to do so."""
        return 0 if self.absent(job.owner) else sum(self.slots[slot].leasable for slot in slots)

    def active_jobs(self) -> list[Job]:
        """Unfinished jobs that aren't queued, oldest first."""
        return [self.jobs[job] for job in sorted(self.active)]

    def free(self) -> Iterator[tuple[str, SlotId]]:
        """(host, slot) of every free slot in the pool's order."""
        for host in self.hosts:
            for slot in host.slots:
                slot_id = host.slot_id(slot.index)
                if self.slots[slot_id].free:
                    yield host.name, slot_id

    def hosts_of(self, slots: tuple[SlotId, ...]) -> list[str]:
        """The host of each slot."""
        return [self.slots[slot].host for slot in slots]


def needs(spec: JobSpec) -> int:
    """Slots without which such a job can't start."""
    return min((n for n in spec.sizes if n >= spec.min_slots), default=spec.min_slots) + spec.min_servers


def limit_at(job: Job) -> float | None:
    """When the job's running time is used up if it goes on; None: never."""
    if job.spec.max_time_s is None or job.phase == "stopping" or not job.slots:
        return None
    return job.accounted_at + job.spec.max_time_s - job.run_s


def evolve(state: State, event: Event) -> None:
    """Fold one event into the state."""
    state.seq = event.seq
    state.at = max(state.at, event.at)
    data = event.data
    if isinstance(data, JobSubmitted):
        _submitted(state, event, data)
        return
    pool = _POOL.get(type(data))
    if pool is not None:
        pool(state, data)
        return
    job = state.jobs.get(data.job)  # type: ignore[union-attr]
    if job is not None:
        _JOB[type(data)](state, job, state.at, data)


# --- the life of a job ------------------------------------------------------------------------------------------------


def _submitted(state: State, event: Event, data: JobSubmitted) -> None:
    job = Job(
        job=data.job,
        owner=data.owner,
        spec=_shared(data.spec),
        submitted_at=state.at,
        submitted_seq=event.seq,
        queued_at=state.at,
    )
    state.jobs[data.job] = job
    state.unfinished[job.owner] = state.unfinished.get(job.owner, 0) + 1
    state.keys[event.cause] = data.job
    if data.spec.interactive:
        state.interactive.add(data.job)
    if data.uid is not None:
        state.ids[data.owner] = data.uid
    state.next_job = max(state.next_job, data.job + 1)


def _shared(spec: JobSpec) -> JobSpec:
    """The spec with the texts that many jobs have alike kept once."""
    return replace(spec, **{name: intern(getattr(spec, name)) for name in ("name", "python", "notebook", "cell")})


def _started(state: State, job: Job, at: float, data: JobStarted) -> None:
    job.phase = after(job.phase, data)
    job.attempt, job.generation, job.settled = data.attempt, data.generation, 0
    job.lease_s = data.lease_s
    job.stop, job.members, job.elastic = "", (), None
    job.deaths, job.died, job.mishap = 0, {}, ""
    job.started_at = at if job.started_at is None else job.started_at
    job.accounted_at = at
    if job.learned is _NOTHING_LEARNED:
        job.learned = Learned()
    job.learned.cold()
    state.active.add(job.job)
    _hold(state, job, at, data)


def _rescale_requested(state: State, job: Job, at: float, data: RescaleRequested) -> None:
    job.phase = after(job.phase, data)
    job.generation = data.generation
    state.yielded.pop(job.job, None)
    if data.yielded:
        state.yielded[job.job] = data.yielded
    _hold(state, job, at, data)


def _hold(state: State, job: Job, at: float, data: JobStarted | RescaleRequested) -> None:
    """The job is to hold exactly these slots: new ones are leased, others drain."""
    _account(state, job, at)
    wanted = set(data.slots)
    _drain(state, job, tuple(slot for slot in job.slots if slot not in wanted))
    for slot in data.slots:
        entry = state.slots.get(slot)
        if entry is not None and entry.job is None:
            entry.job, entry.draining, entry.granted = job.job, False, data.generation
    job.slots, job.servers = data.slots, data.servers
    _leave(state, job)
    job.changed_at, job.reason = at, data.reason


def _drain(state: State, job: Job, slots: tuple[SlotId, ...]) -> None:
    for slot in slots:
        entry = state.slots.get(slot)
        if entry is not None:
            entry.draining = True
    job.draining += slots


def _running(_state: State, job: Job, _at: float, data: JobRunning) -> None:
    job.phase = after(job.phase, data)
    job.elastic = data.elastic
    if (job.settled, job.members) != (data.generation, data.slots):
        job.settled, job.members = data.generation, data.slots
        job.learned.settled(rescaled=data.generation > 1, pause_s=data.pause_s)


def _stop_requested(state: State, job: Job, at: float, data: StopRequested) -> None:
    _account(state, job, at)
    job.phase = after(job.phase, data)
    _drain(state, job, job.slots)
    job.slots, job.servers, job.leaving = (), 0, False
    job.stop, job.reason = data.how, data.reason
    state.yielded.pop(job.job, None)


def _released(state: State, job: Job, at: float, data: SlotsReleased) -> None:
    _account(state, job, at)
    gone = set(data.slots)
    for slot in data.slots:
        entry = state.slots.get(slot)
        if entry is None or entry.job != job.job:
            continue
        entry.job, entry.draining, entry.granted = None, False, 0
        if entry.foreign:  # until the hosts are looked at again, nobody else gets it
            entry.out, entry.foreign = entry.out or in_use_by(entry.foreign), ()
        if entry.gone:
            del state.slots[slot]
    if gone.intersection(job.slots):
        servers = job.slots[len(job.slots) - job.servers :]
        job.servers = sum(slot not in gone for slot in servers)
        job.slots = tuple(slot for slot in job.slots if slot not in gone)
        _leave(state, job)
    job.draining = tuple(slot for slot in job.draining if slot not in gone)


def _progressed(_state: State, job: Job, at: float, data: JobProgressed) -> None:
    progress = job.progress = data.progress
    mark = next((m for m in (progress.samples, progress.step, progress.epoch) if m is not None), None)
    if mark is not None and (job.furthest is None or mark > job.furthest):
        job.furthest, job.losses = mark, 0
    if job.phase == "running":
        job.learned.add(at, progress, len(job.members) - job.servers, job.servers)


def _died(_state: State, job: Job, at: float, data: WorkerDied) -> None:
    job.deaths = data.count
    job.died[data.slot] = data.count
    job.mishap, job.mishap_at = data.text, at


def _replaced(_state: State, job: Job, _at: float, data: WorkerReplaced) -> None:
    job.died.pop(data.slot, None)
    job.mishap += f"; {data.text}"


def _requeued(state: State, job: Job, at: float, data: JobRequeued) -> None:
    _account(state, job, at)
    job.phase = after(job.phase, data)
    job.queued_at = at
    job.stop, job.reason = "", data.reason
    job.members = ()
    state.active.discard(job.job)
    state.yielded.pop(job.job, None)
    if data.cause == "preempted":
        job.preemptions += 1
    else:
        job.restarts += 1
        job.losses += 1


def _resized(_state: State, job: Job, _at: float, data: JobResized) -> None:
    before, job.spec = job.spec, data.applied(job.spec)
    if (before.min_slots, before.max_slots) != (data.min_slots, data.max_slots):
        job.resized_by = data.by


def _ended(state: State, job: Job, at: float, data: JobEnded) -> None:
    _account(state, job, at)
    job.phase = after(job.phase, data)
    if job.phase not in ENDED:
        return
    job.ended_at, job.reason, job.stop = at, data.reason, ""
    job.learned, job.died = _NOTHING_LEARNED, _NOBODY_DIED  # policies see unfinished jobs only
    del state.jobs[job.job]
    state.ended[job.job] = job
    state.unfinished[job.owner] -= 1
    if not state.unfinished[job.owner]:
        del state.unfinished[job.owner]
    state.active.discard(job.job)
    state.interactive.discard(job.job)
    state.yielded.pop(job.job, None)
    state.reasons.pop(job.job, None)


def _account(state: State, job: Job, at: float) -> None:
    """Count the time since the last count, for the job and for who owns it."""
    if job.slots and at > job.accounted_at:
        users = state.used.setdefault(job.spec.group, {})
        used = users.setdefault(job.owner, Used(slot_s=0.0, at=at))
        used.add(len(job.slots), job.accounted_at, at, state.half_life_s)
    job.account(at)


def _forgotten(state: State, data: JobsForgotten) -> None:
    gone = set(data.jobs)
    for job in gone:
        state.ended.pop(job, None)
    state.keys = {key: job for key, job in state.keys.items() if job not in gone}
    owners = {job.owner for jobs in (state.jobs, state.ended) for job in jobs.values()}
    for group, users in list(state.used.items()):
        state.used[group] = {name: one for name, one in users.items() if one.now(state.at, state.half_life_s) >= 1.0}
    state.ids = {owner: uid for owner, uid in state.ids.items() if owner in owners}


# --- the pool ---------------------------------------------------------------------------------------------------------


def _hosts_changed(state: State, data: HostsChanged) -> None:
    state.hosts = data.hosts
    present: dict[SlotId, SlotState] = {}
    for host in data.hosts:
        for slot in host.slots:
            slot_id = host.slot_id(slot.index)
            entry = state.slots.get(slot_id) or SlotState(host=host.name, index=slot.index)
            entry.device, entry.out, entry.foreign, entry.gone = slot.device, slot.out, slot.processes, False
            present[slot_id] = entry
    for slot_id, entry in state.slots.items():
        if slot_id not in present and entry.job is not None:
            entry.out, entry.gone = "host lost", True
            present[slot_id] = entry
    state.slots = present
    _mark_drained(state)


def _drains_changed(state: State, data: DrainsChanged) -> None:
    state.drains = data.drains
    _mark_drained(state)


def _mark_drained(state: State) -> None:
    for slot_id, entry in state.slots.items():
        entry.drained = any(drain.covers(entry.host, slot_id) for drain in state.drains)
    for job in state.active_jobs():
        _leave(state, job)


def _leave(state: State, job: Job) -> None:
    job.leaving = any(state.slots[slot].drained for slot in job.slots if slot in state.slots)


def _policy_used(state: State, data: PolicyUsed) -> None:
    if data.source:  # other code under the same name may not understand an old memo
        state.memos.pop(data.name, None)
    asked = data.options.get("half_life_s")
    half_life_s = float(asked) if isinstance(asked, int | float) and isfinite(asked) and asked > 0 else HALF_LIFE_S
    if half_life_s != state.half_life_s:  # as with Slurm what was counted stays, and decays at the new rate
        for job in state.active_jobs():
            _account(state, job, state.at)
        for used in (one for users in state.used.values() for one in users.values()):
            used.add(0, state.at, state.at, state.half_life_s)
        state.half_life_s = half_life_s
    state.policy, state.policy_options, state.policy_source = data.name, data.options, data.source
    state.rejections = 0
    state.reasons = {}


def _plan_rejected(state: State, _data: PlanRejected) -> None:
    state.rejections += 1


def _plan_accepted(state: State, data: PlanAccepted) -> None:
    state.rejections = 0
    state.memos[data.policy] = data.memo
    state.reasons = {int(job): reason for job, reason in data.reasons.items()}


def _agent_changed(state: State, data: AgentChanged) -> None:
    state.agents[data.user] = data.connected
    if data.place is not None:
        state.places[data.user] = data.place


def _shares_changed(state: State, data: SharesChanged) -> None:
    state.shares = data


def _key_registered(state: State, data: KeyRegistered) -> None:
    state.registered[data.key] = data


def _key_revoked(state: State, data: KeyRevoked) -> None:
    state.registered.pop(data.key, None)


def _books_restored(state: State, data: BooksRestored) -> None:
    state.next_job = max(state.next_job, data.next_job)
    for number, attempt in data.attempts.items():
        job = state.jobs.get(int(number))
        if job is not None:
            job.attempt = max(job.attempt, attempt)


_POOL: dict[type[AnyEventData], Callable[[State, Any], None]] = {
    JobsForgotten: _forgotten,
    HostsChanged: _hosts_changed,
    DrainsChanged: _drains_changed,
    PolicyUsed: _policy_used,
    PlanRejected: _plan_rejected,
    PlanAccepted: _plan_accepted,
    AgentChanged: _agent_changed,
    SharesChanged: _shares_changed,
    BooksRestored: _books_restored,
    AsksRefused: lambda _state, _data: None,  # for people
    KeyRegistered: _key_registered,
    KeyRevoked: _key_revoked,
}
_JOB: dict[type[AnyEventData], Callable[[State, Job, float, Any], None]] = {
    JobStarted: _started,
    RescaleRequested: _rescale_requested,
    JobRunning: _running,
    StopRequested: _stop_requested,
    SlotsReleased: _released,
    JobProgressed: _progressed,
    WorkerDied: _died,
    WorkerReplaced: _replaced,
    JobRequeued: _requeued,
    JobResized: _resized,
    JobEnded: _ended,
}
