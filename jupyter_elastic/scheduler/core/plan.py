"""Judge a policy's plan, and compute the events that carry it out.

Knows the state and a plan; must not know which policy sent it. The plan is untrusted: nothing in it is used before it
is checked. Growth is granted only from slots that are free now; a job waits for draining slots, and later jobs don't
get them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec

from jupyter_elastic.scheduler.core import placement
from jupyter_elastic.scheduler.core.rule import SuitableHosts
from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.scheduler.core.view import job_view
from jupyter_elastic.types import (
    AnyEventData,
    JobId,
    JobStarted,
    JobView,
    Plan,
    RescaleRequested,
    Size,
    SlotId,
    StopRequested,
    View,
)
from jupyter_elastic.types.texts import visible

MEMO_BYTES = 64 * 1024
REASON_CHARS = 2_000
MAX_NEXT = 100
"""Maximum number of jobs that a plan may name as the next ones."""


def illegal(plan: Any, view: View) -> str | None:
    """Return the reason why a pool that shows this view would refuse the plan; None if it would follow it."""
    jobs = {job.job: None if job.phase == "stopping" else job for job in view.jobs}
    held = (job for job in view.jobs if job.size.workers and not (job.preemptible or job.spared))
    return _judge(plan, jobs.__getitem__, held, view.capacity, view.server_slots) or memo(plan)[1]


def judge(state: State, plan: Any) -> str | None:
    """Return the reason why the plan is illegal, its memo not considered; None if it is legal.

    Jobs that have ended or are stopping are skipped: they may have done so while the policy was computing.
    """

    def find(number: JobId) -> JobView | None:
        if number in state.ended:
            return None
        job = state.jobs[number]
        return None if state.ignored(job) else job_view(job)

    held = (view for job in state.active_jobs() if job.slots and not (view := job_view(job)).preemptible)
    return _judge(plan, find, held, state.capacity, state.server_capacity)


def _judge(  # noqa: C901, PLR0911  a check each
    plan: Any,
    find: Callable[[JobId], JobView | None],
    held: Iterable[JobView],
    capacity: int,
    server_slots: int | None,
) -> str | None:
    """Return the reason why the plan is illegal; None if it is legal.

    `find` returns None for a job to skip and raises KeyError for an unknown one. `held` are the jobs that must keep
    some slots; `server_slots` counts the slots for servers alone, None if servers take slots as workers do.
    """
    if not isinstance(plan, Plan):
        return f"{type(plan).__name__} is no Plan"
    sizes: Any = plan.sizes
    reasons: Any = plan.reasons
    if not isinstance(sizes, dict) or not isinstance(reasons, dict):
        return "sizes and reasons of a plan are dictionaries by job id"
    total = servers = 0
    for number, size in sizes.items():
        if type(number) is not int:
            return f"{number!r} is no job id; ids are integers"
        if not (isinstance(size, Size) and type(size.workers) is int and type(size.servers) is int):
            return f"job {number}: {size!r} is no Size of whole numbers"
        try:
            job = find(number)
        except KeyError:
            return f"there is no unfinished job {number}"
        if job is None:
            continue
        problem = _judge_size(job, size)
        if problem:
            return f"job {number}: {problem}"
        total += size.workers if server_slots is not None else size.slots
        servers += size.servers
    if total > capacity:
        return f"it gives away {total} slots, but the pool has {capacity}"
    if server_slots is not None and servers > server_slots:
        return f"it gives away {servers} servers, but the pool has {server_slots} slots for them"
    for job in held:
        if not sizes.get(job.job, Size(0)).workers:
            return f"job {job.job} is not preemptible, but the plan takes all its slots"
    return None


def _judge_size(job: JobView, size: Size) -> str | None:
    if size.workers < 0 or size.servers < 0:
        return f"a negative size ({size.workers} workers, {size.servers} servers)"
    if size == job.size:
        return None
    if size.workers == 0:
        return "servers without workers" if size.servers else None
    if not job.allows(size.workers):
        low, high = job.min_slots, job.max_slots
        allowed = f"one of {', '.join(map(str, job.sizes))}" if job.sizes else f"{low} to {high}"
        if low == high == job.size.workers:
            allowed = f"{low}, the size that it has; only all of it can be taken"
        return f"{size.workers} workers are not allowed, it takes {allowed}"
    if not job.min_servers <= size.servers <= job.max_servers:
        return f"{size.servers} servers are not allowed, it takes {job.min_servers} to {job.max_servers}"
    return None


def memo(plan: Plan) -> tuple[Any, str | None]:
    """Return (the memo as it comes back from the journal, None), or (None, the reason why it can't be kept)."""
    try:
        kept, size = journaled(plan.memo)
    except ValueError as problem:
        return None, f"its memo holds more than JSON values: {problem}"
    if size > MEMO_BYTES:
        return None, f"its memo has {size:,} bytes, {MEMO_BYTES:,} are allowed"
    return kept, None


def journaled(value: Any) -> tuple[Any, int]:
    """Return an untrusted value as the journal gives it back, and its size in bytes; ValueError if it can't be kept."""
    try:
        text = msgspec.json.encode(value)
        kept = msgspec.json.decode(text)
        msgspec.msgpack.encode(kept)  # events also travel: no numbers of more than 64 bits
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
        raise ValueError(str(problem)) from problem
    return kept, len(text)


def reasons(state: State, plan: Plan) -> dict[JobId, str]:
    """Return the plan's reasons for unfinished jobs, as plain text of bounded length."""
    found: dict[JobId, str] = {}
    for job, reason in plan.reasons.items():
        if type(job) is int and job in state.jobs and isinstance(reason, str) and reason:
            found[job] = plain(reason)
    for number, size in plan.sizes.items():
        known = state.jobs.get(number)
        if known is not None and _follows_its_range(known, size.workers):
            low, high = known.spec.min_slots, known.spec.max_slots
            by = f" by {known.resized_by}" if known.resized_by else ""
            found[number] = f"resized to {low if low == high else f'{low}:{high}'}{by}"
    return found


def turn(state: State, plan: Plan) -> tuple[JobId, ...]:
    """Return the queued jobs that the plan names as the next ones, unknown ones left out."""
    said: Any = plan.turn
    if not isinstance(said, tuple):
        return ()
    known = (job for job in said[:MAX_NEXT] if type(job) is int and job in state.jobs)
    return tuple(dict.fromkeys(job for job in known if state.jobs[job].phase == "queued"))


def _follows_its_range(job: Job, workers: int) -> bool:
    """True if a running job leaves its size as its range changed, and shrinks no further than the range requires."""
    held, low, high = job.size.workers, job.spec.min_slots, job.spec.max_slots
    return 0 < held < low <= workers or (held > high and workers == job.largest(high))


def plain(text: str) -> str:
    """Make text of bounded length that every encoding can hold and that sends a terminal no commands."""
    return visible(text[:REASON_CHARS].encode("utf-8", "replace").decode("utf-8"), lines=True)[:REASON_CHARS]


def difference(state: State, plan: Plan, suitable: SuitableHosts, *, kept: int = 0) -> list[AnyEventData]:
    """Return the events of a legal plan: stops, then shrinks, then as much growth as is free on suitable hosts.

    The first `kept` slots that are free, or will be soon, are for jobs that the plan does not know of.
    """
    return _Difference(state, plan, suitable, kept).events()


class _Difference:
    """Differences between one plan and what is held.

    `_free` slots are still to give, `_coming` ones will be free soon; without slots for servers alone all are workers'.
    """

    def __init__(self, state: State, plan: Plan, suitable: SuitableHosts, kept: int) -> None:
        self._state = state
        self._reasons = reasons(state, plan)
        self._wanted = {
            job: size
            for job, size in plan.sizes.items()
            if size.workers and job in state.jobs and not state.ignored(state.jobs[job])
        }
        self._pool = placement.Free(state.free())
        self._server_pool = placement.Free(state.free(for_servers=True)) if state.apart else self._pool
        self._free = Size(len(self._pool), len(self._server_pool) if state.apart else 0)
        self._coming = Size(0)
        self._suitable = suitable
        self._given: dict[JobId, tuple[SlotId, ...]] = {}
        """Slots set aside for jobs that only some hosts may serve, the workers' first."""
        for job in state.active_jobs():
            self._comes(job, job.draining)
        self._set_aside(Size(kept))

    def events(self) -> list[AnyEventData]:
        state = self._state
        stops: list[AnyEventData] = []
        shrinks: list[AnyEventData] = []
        growing: list[Job] = []
        for job in state.active_jobs():
            size = self._wanted.get(job.job)
            if job.phase == "stopping" or size == job.size:
                continue
            if size is None:
                stops.append(self._stop(job))
                self._comes(job, job.slots)
            elif size.workers <= job.size.workers and size.servers <= job.size.servers:
                data = self._rescale(job, size)
                shrinks.append(data)
                self._comes(job, set(job.slots).difference(data.slots))
            else:
                growing.append(job)
        growing += [state.jobs[job] for job in self._wanted if state.jobs[job].phase == "queued"]
        growing.sort(key=lambda job: job.key)
        grants = [(job, size) for job in growing if (size := self._grant(job)) is not None]
        # Those who are somewhere already choose first, then the large ones: they are the hardest to keep on one host.
        grants.sort(key=lambda grant: (grant[0].phase == "queued", -grant[1].slots, grant[0].key))
        grown: list[AnyEventData] = [
            self._start(job, size) if job.phase == "queued" else self._rescale(job, size) for job, size in grants
        ]
        return [*stops, *shrinks, *grown]

    def _grant(self, job: Job) -> Size | None:
        """Return the size that the job gets now, None if nothing new; set slots aside for what it must wait for."""
        size = self._wanted[job.job]
        if (only := self._suitable(job)) is not None:
            return self._grant_on(job, size, only)
        need = self._new(job.size, size)
        if _fits(need, self._free):
            self._take(need)
            return size
        if job.phase == "queued":
            if _fits(need, _sum(self._free, self._coming)):  # a gang starts whole; what it waits for will come
                self._set_aside(need)
                return None
            servers = min(size.servers, job.spec.min_servers)
            room = self._free.workers - (0 if self._state.apart else servers)
            least = Size(job.largest(min(size.workers, room)), servers)
            need = self._new(job.size, least)
            if not least.workers or not _fits(need, self._free):
                return None
            self._take(need)
            return least
        given = self._grow(job, size)
        taken = self._new(job.size, given)
        self._take(taken)
        self._set_aside(_less(need, taken))
        return given if given != job.size else None

    def _grant_on(self, job: Job, size: Size, only: Collection[str]) -> Size | None:
        """Grant as many slots as are free on the hosts `only`, the only ones that may serve the job."""
        servers = 0 if self._state.apart else max(size.servers - job.size.servers, 0)
        room = min(self._pool.on_all(only), self._free.workers) - servers
        if room < size.workers - job.size.workers:
            if job.phase == "queued" and job.spec.session and self._state.bound_to(job.spec):
                return None  # a session's cell begins with all of its workers
            size = Size(max(job.largest(job.size.workers + max(room, 0)), job.size.workers), size.servers)
        need = self._new(job.size, size)
        if not size.workers or room < 0 or not need.slots or not _fits(need, self._free):
            return None
        near = self._state.hosts_of(job.slots)
        self._given[job.job] = self._pool.take(need.workers, near, only, prefer=job.spec.prefers)
        self._take(need)
        return size

    def _give(self, job: Job, count: int, pool: placement.Free, near: Sequence[str]) -> tuple[SlotId, ...]:
        """Take `count` new slots, from those set aside for the job if there are some."""
        mine = self._given.get(job.job)
        if mine is None or pool is not self._pool:
            return pool.take(count, near=near, prefer=job.spec.prefers)
        self._given[job.job] = mine[count:]
        return mine[:count]

    def _grow(self, job: Job, size: Size) -> Size:
        """Return the size nearest to `size` that the job can reach from its own with the free slots."""
        held, apart = job.size, self._state.apart
        servers = min(size.servers, held.servers + (self._free.servers if apart else self._free.workers))
        free = self._free.workers - (0 if apart else max(servers - held.servers, 0))
        workers = size.workers
        if workers > held.workers:
            workers = max(job.largest(min(workers, held.workers + free)), held.workers)
        return Size(workers=workers, servers=servers)

    def _new(self, held: Size, size: Size) -> Size:
        """Return the slots to lease between one size and another; a draining server's slot is not for a new worker."""
        more = _less(size, held)
        return more if self._state.apart else Size(more.slots)

    def _comes(self, job: Job, slots: Collection[SlotId]) -> None:
        """Count slots of the job as coming free soon."""
        servers = self._state.coming(job, slots, for_servers=True) if self._state.apart else 0
        self._coming = _sum(self._coming, Size(self._state.coming(job, slots), servers))

    def _take(self, need: Size) -> None:
        self._free = _less(self._free, need)

    def _set_aside(self, need: Size) -> None:
        rest = _less(need, self._free)
        self._take(need)
        self._coming = _less(self._coming, rest)

    def _stop(self, job: Job) -> StopRequested:
        reason = self._reasons.get(job.job) or "its slots went to others"
        return StopRequested(job=job.job, attempt=job.attempt, how="preempt", reason=reason)

    def _start(self, job: Job, size: Size) -> JobStarted:
        if self._state.apart:
            slots = self._give(job, size.workers, self._pool, ())
            slots += self._server_pool.take(size.servers, near=self._state.hosts_of(slots))
        else:
            slots = self._give(job, size.slots, self._pool, ())
        return JobStarted(
            job=job.job,
            attempt=job.attempt + 1,
            generation=1,
            slots=slots,
            servers=size.servers,
            reason=self._reasons.get(job.job, ""),
        )

    def _rescale(self, job: Job, size: Size) -> RescaleRequested:
        workers, servers = split(job)
        hosts = self._state.hosts_of(job.slots)
        parts: list[str] = []
        for held, count, pool in (
            (workers, size.workers, self._pool),
            (servers, size.servers, self._server_pool),
        ):
            if count <= len(held):
                parts += placement.keep(held, self._state.hosts_of(held), count)
            else:
                parts += (*held, *self._give(job, count - len(held), pool, hosts))
        return rescale(job, tuple(parts), size.servers, self._reasons.get(job.job, ""))


def _fits(need: Size, room: Size) -> bool:
    return need.workers <= room.workers and need.servers <= room.servers


def _sum(one: Size, other: Size) -> Size:
    return Size(one.workers + other.workers, one.servers + other.servers)


def _less(size: Size, by: Size) -> Size:
    """Subtract one size from the other, not below zero."""
    return Size(max(size.workers - by.workers, 0), max(size.servers - by.servers, 0))


def split(job: Job) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the job's slots into (workers, servers)."""
    cut = len(job.slots) - job.servers
    return job.slots[:cut], job.slots[cut:]


def rescale(job: Job, slots: tuple[str, ...], servers: int, reason: str) -> RescaleRequested:
    """Return the event that makes the job go on with `slots`."""
    return RescaleRequested(
        job=job.job,
        attempt=job.attempt,
        generation=job.generation + 1,
        slots=slots,
        servers=servers,
        reason=reason,
    )


def without(state: State, job: Job, lost: list[SlotId], reason: str) -> AnyEventData:
    """Return the event by which the job goes on without the lost slots if it can regroup, else is queued again."""
    workers, servers = (tuple(slot for slot in part if slot not in lost) for part in split(job))
    size = job.largest(len(workers)) if len(servers) >= job.spec.min_servers else 0
    if size and not job.rigid and job.phase in {"running", "rescaling"}:
        kept = placement.keep(workers, state.hosts_of(workers), size)
        return rescale(job, (*kept, *servers), len(servers), reason)
    return StopRequested(job=job.job, attempt=job.attempt, how="preempt", reason=reason)
