"""Coach: learn from measured speeds how many workers and servers train fastest; slots go where they save most.

Source: Sundkvist, *Coach* (Umea 2021): functions fitted to previous epochs estimate the best number of workers and
servers. The functions are those of `scaling`; slots go by the gain per slot of Optimus (Peng et al., EuroSys 2018). A
job starts at its minimum. While slots are free and no job waits it may go to sizes that the fit expects to be faster,
with at most twice as many workers and servers as were measured; with few points the prior of `scaling` dominates, so
that sizes are tried (`scaling.cautious`). A size without a gain is left again, and not tried again. Measurements of an
owner's jobs of one name count for all of these jobs, also later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from statistics import median
from typing import Annotated, TypeAlias

from msgspec import Meta

from jupyter_elastic.scheduler.policies import scaling
from jupyter_elastic.scheduler.policies.common import Configured, Draft, ladder, seat
from jupyter_elastic.scheduler.policies.convergence import converged_at
from jupyter_elastic.scheduler.policies.elastic import ElasticOptions
from jupyter_elastic.scheduler.policies.scaling import EXPLAINS, ScalingFit, cautious, expect
from jupyter_elastic.scheduler.policies.speed import UNKNOWN_S
from jupyter_elastic.types import JobId, JobView, Plan, View

NEAR = 0.97
"""Minimum part of the best measured speed at which the smallest such size is chosen."""
STAYS = 1.01
"""Factor by which a job's present size, if near the best speed, must be faster than that smallest size to be kept."""
REACH = 2
"""Factor over the measured numbers of workers, and servers, up to which sizes may be tried next."""
WORTH = 0.05
"""Minimum part of the changed jobs' remaining time that moving slots between running jobs must save."""
WORKLOADS, SIZES = 40, 16
"""Maximum number of workloads, and of sizes for each, in the memo."""
ANEW = 0.1
"""Relative difference from which on a noted speed is replaced."""
FEW, MANY = 3, 12
"""Numbers of points below which a fit is mostly the prior, and from which on more points are not used."""

Pair: TypeAlias = tuple[int, int]
"""(workers, servers)."""
Measured: TypeAlias = tuple[tuple[Pair, float], ...]
"""Seconds per sample by size, in order of the sizes."""


class Coach(Configured):
    """Marginal gain by measurements and by the fit."""

    name = "coach"
    summary = "Learns how many workers and servers train fastest, and gives them where they save most (Coach)."
    work_conserving = False
    interval_s = 10.0

    class Options(ElasticOptions, frozen=True):
        explore: Annotated[
            bool, Meta(description="whether free slots may be used to try sizes that nobody has measured")
        ] = True

    options: Options

    def plan(self, view: View) -> Plan:
        """Give minimums, present sizes and growth; or share all slots anew if that saves enough."""
        draft = Draft(view)
        draft.pin()
        head = seat(draft, draft.by_priority([*draft.running, *draft.waiting]), strict=True)
        shared = _noted(view)
        explore = self.options.explore and head is None
        known = {number: JobRates(job, shared, explore=explore) for number, job in draft.jobs.items()}
        movable = {number for number, job in draft.jobs.items() if self._movable(view, job, known[number])}
        anew = draft.twin()
        self._hold(draft, known, movable)
        self._climb(draft, known, movable)
        if any(job.job in movable for job in draft.running):
            for job in anew.running:
                if job.job in anew.workers and job.job not in movable:
                    _restore(anew, job)
            self._climb(anew, known, movable, pays=False)
            if self._better(draft, anew, known):
                draft = anew
        for number, job in draft.jobs.items():
            if job.size.workers or known[number].times:
                draft.reasons.setdefault(number, known[number].reason(draft.size(job)))
        return draft.plan(memo=shared or None)

    def _movable(self, view: View, job: JobView, known: JobRates) -> bool:
        """True if the job may be rescaled for its own good: it has rested, and its present size was measured."""
        if not job.size.workers:
            return True
        rested = self.options.cooldown * job.profile.rescale_cost_s
        return (
            job.phase == "running"
            and (job.size.workers, job.size.servers) in known.own
            and (job.changed_at is None or view.now - job.changed_at >= rested)
        )

    def _hold(self, draft: Draft, known: Mapping[JobId, JobRates], movable: set[JobId]) -> None:
        """Let running jobs keep their sizes; a job with too many workers or servers goes to its best size."""
        for job in draft.running:
            if job.job in draft.workers:
                best = known[job.job].best
                too_many = job.job in movable and (best[0] < job.size.workers or best[1] < job.size.servers)
                if not (too_many and draft.resize(job, *best)):
                    _restore(draft, job)

    def _climb(self, draft: Draft, known: Mapping[JobId, JobRates], movable: set[JobId], *, pays: bool = True) -> None:
        """Give free slots, step by step, where a slot saves most; `pays`: only if a running job gains enough."""
        heap: list[tuple[float, int, Pair, JobView]] = []

        def push(at: int, job: JobView, replaces: bool = False) -> None:
            gain, to = known[job.job].step(draft.size(job), draft.free)
            if gain > 0 and replaces:
                heapreplace(heap, (-gain, at, to, job))
            elif gain > 0:
                heap.append((-gain, at, to, job))
            elif replaces:
                heappop(heap)

        apart = any(not job.server_cost for job in draft.jobs.values())
        if not (draft.free or apart):
            return
        for at, (number, job) in enumerate(draft.jobs.items()):
            if number in movable and (not pays or self._pays(job, known[number])):
                push(at, job)
        heapify(heap)
        while heap and (draft.free or apart):
            _, at, to, job = heap[0]
            draft.resize(job, *to)
            push(at, job, replaces=True)

    def _pays(self, job: JobView, known: JobRates) -> bool:
        if not job.size.workers:
            return True
        held = job.size.workers, job.size.servers
        return known.left(held) - known.left(known.best) > self.options.payback * job.profile.rescale_cost_s

    def _better(self, draft: Draft, anew: Draft, known: Mapping[JobId, JobRates]) -> bool:
        """True if sharing all slots anew saves more than all its changes cost, and enough to be worth them."""
        before = after = cost = 0.0
        for number, job in anew.jobs.items():
            held, size = draft.size(job), anew.size(job)
            if held != size:
                before += known[number].left(held)
                after += known[number].left(size)
            if job.size.workers and size != (job.size.workers, job.size.servers):
                cost += job.profile.rescale_cost_s
        return before - after > max(self.options.payback * cost, WORTH * before)


class JobRates:
    """Knowledge of a job: its speed by size, its remaining work, and its best size."""

    def __init__(self, job: JobView, shared: Mapping[str, Mapping[str, float]], *, explore: bool) -> None:
        self.job = job
        servers = job.max_servers > 0
        self.own = {
            (one.workers, one.servers): 1 / one.samples_per_s
            for one in job.profile.speeds
            if (one.servers > 0) == servers and one.samples_per_s > 0
        }
        self.measured = _with_kin(self.own, shared.get(_workload(job), {}), servers=servers)
        self.times = dict(self.measured)
        top = job.max_slots if not self.times else REACH * max(workers for workers, _ in self.times)
        most_servers = job.max_servers if not self.times else REACH * max(count for _, count in self.times)
        rungs = tuple(workers for workers in ladder(job) if workers <= top)
        counts = range(max(job.min_servers, int(servers)), min(job.max_servers, max(most_servers, 1)) + 1)
        self.least = (job.min_slots if not job.sizes else min(ladder(job), default=0)), job.min_servers
        self.best = self.least
        self.compared: Mapping[Pair, float] = {}
        """Seconds for a sample by which its sizes were compared."""
        if self.times and rungs and counts:
            held = job.size.workers, job.size.servers
            self.best, self.compared = _best(self.measured, rungs, counts, held, explore)
        self.fit = _expected(self.measured) if self.times and self.best not in self.times else None
        self.work = _work(job, self.times)

    def seconds(self, size: Pair) -> float:
        """Return the seconds for a sample: as its sizes were compared, else measured, else expected."""
        time = self.compared.get(size, self.times.get(size))
        if time is None:
            self.fit = self.fit or _expected(self.measured)
            time = self.fit.epoch_s(*size)
        return time

    def left(self, size: Pair) -> float:
        """Return the seconds that the job still needs at a size; 0 if nothing is known, so that nothing is gained."""
        return self.work * self.seconds(size) if self.times and size[0] else 0.0

    def step(self, size: Pair, room: int) -> tuple[float, Pair]:
        """Return (seconds saved per slot, size) of the best step towards the best size; (0, size) if none gains."""
        gain, to = 0.0, size
        if not self.times or not size[0]:
            return gain, to
        now, job = self.left(size), self.job
        workers, servers = size
        wider = [rung for reach in (1, 2, 4, 8, 16, 32) if (rung := _up(job, workers, reach)) <= self.best[0]]
        ahead = {(rung, count) for rung in (workers, *wider, self.best[0]) for count in (servers, servers + 1)}
        for one in sorted({*ahead, self.best}):
            more = sum(one) - sum(size)
            takes = one[0] - workers + (one[1] - servers) * job.server_cost
            if workers <= one[0] <= self.best[0] and servers <= one[1] <= self.best[1] and more > 0 and takes <= room:
                saves = (now - self.left(one)) / more
                if saves > gain:
                    gain, to = saves, one
        return gain, to

    def reason(self, size: Pair) -> str:
        """Format the reason for people."""
        if not self.times:
            return "it has reported no speed yet: its size stays"
        points = f"{len(self.times)} size{'' if len(self.times) == 1 else 's'} measured"
        if FEW <= len(self.times) <= MANY:
            fit = _expected(self.measured)
            points += f", fit {fit.form} off by {fit.error:.0%}, explains {max(fit.explained, 0.0):.0%}"
        if size == self.best:
            why = "fastest as far as is known" if size in self.times else "expected to be faster: it is tried"
        else:
            why = f"{_text(self.best)} would be faster"
        return f"{_text(size)}: {why} ({points})"


def _text(size: Pair) -> str:
    workers, servers = size
    more = f" and {servers} server{'' if servers == 1 else 's'}" if servers else ""
    return f"{workers} worker{'' if workers == 1 else 's'}{more}"


def _up(job: JobView, workers: int, reach: int) -> int:
    """Return the smallest allowed number of workers from `workers + reach` on; a huge one if there is none."""
    return next((rung for rung in ladder(job) if rung >= workers + reach), 2**31)


def _restore(draft: Draft, job: JobView) -> None:
    """Give a running job its present size, or as much of it as is allowed and free."""
    servers = min(max(job.size.servers, job.min_servers), job.max_servers)
    room = draft.cost(job) + draft.free
    for count in (servers, job.min_servers):
        rungs = [rung for rung in ladder(job) if rung <= min(job.size.workers, room - count * job.server_cost)]
        if rungs and rungs[-1] >= draft.size(job)[0] and draft.resize(job, rungs[-1], count):
            return


@lru_cache(4096)
def _expected(measured: Measured) -> ScalingFit:
    return expect(dict(measured[:: -(-len(measured) // MANY)]))


@lru_cache(4096)
def _best(
    measured: Measured, rungs: Sequence[int], counts: Sequence[int], held: Pair, explore: bool
) -> tuple[Pair, Mapping[Pair, float]]:
    """Return the smallest of the fastest known sizes, and the times that sizes were compared by (`cautious`)."""
    times, near = dict(measured), NEAR
    sizes = [(workers, count) for workers in rungs for count in counts]
    known = {size: times[size] for size in sizes if size in times}
    if explore and len(known) < len(sizes):
        fit = _expected(measured)
        if len(measured) < len(fit.coefficients) or fit.explained >= EXPLAINS:
            known, near = cautious(fit, times, sizes), scaling.NEAR
    if not known:
        return sizes[0], {}
    best = min(known.values()) / near
    smallest = min((size for size, time in known.items() if time <= best), key=lambda size: (sum(size), known[size]))
    if held in times and held in known and known[held] <= best and known[smallest] > STAYS * known[held]:
        return held, known
    return smallest, known


def _work(job: JobView, times: Mapping[Pair, float]) -> float:
    """Return the samples to go: as reported, else by the loss curve, else as many again as were trained."""
    profile = job.profile
    if profile.remaining is not None:
        return profile.remaining
    done = profile.done or 0.0
    end = converged_at(profile.losses)
    if end is not None:
        return max(end - done, 0.1 * done)
    unit = max(times.values(), default=0.0)  # of the slowest size, mostly the smallest
    if not unit:
        return 0.0
    return max(done, (job.estimate_s if job.estimate_s is not None else UNKNOWN_S) / unit - done)


def _workload(job: JobView) -> str:
    """Return the key of jobs whose measurements count for each other: those of an owner with one name."""
    return f"{job.owner} {job.name}"


def _noted(view: View) -> dict[str, dict[str, float]]:
    """Return all workloads' measurements: the memo with the view's new ones; the newest workload goes last."""
    notes: dict[str, dict[str, float]] = {}
    if isinstance(view.memo, dict):
        notes = {key: dict(sizes) for key, sizes in view.memo.items() if isinstance(sizes, dict)}
    for job in view.jobs:
        if not job.name:
            continue
        for one in job.profile.speeds:
            sizes = notes.get(_workload(job), {})
            size = f"{one.workers}+{one.servers}"
            noted = sizes.get(size)
            speed = float(f"{one.samples_per_s:.3g}")
            if (noted is None and len(sizes) < SIZES) or (noted and abs(speed / noted - 1) > ANEW):
                notes.pop(_workload(job), None)
                notes[_workload(job)] = sizes | {size: speed}
    return dict(list(notes.items())[-WORKLOADS:])


def _with_kin(own: Mapping[Pair, float], noted: Mapping[str, float], *, servers: bool) -> Measured:
    """Return the seconds by size: the job's own, and for other sizes its kin's, scaled to its own speed."""
    kin: dict[Pair, float] = {}
    for size, speed in noted.items():
        workers, _, count = size.partition("+")
        if speed > 0 and (int(count) > 0) == servers:
            kin[int(workers), int(count)] = 1 / speed
    both = [own[size] / kin[size] for size in own if size in kin]
    scale = median(both) if both else 1.0
    times = {size: time * scale for size, time in kin.items()} | dict(own)
    return tuple((size, float(f"{time:.3g}")) for size, time in sorted(times.items()))
