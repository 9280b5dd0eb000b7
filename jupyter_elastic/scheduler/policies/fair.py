"""Weighted fair shares over groups and their users, with guaranteed quotas.

Source: Ghodsi et al., "Dominant Resource Fairness" (NSDI 2011) by progressive filling; with one resource, the slot, it
is weighted max-min. Each step goes to the group with the least (slots / weight), in it to the user with the least, and
there to the next waiting job's minimum, else to the growth of that user's smallest job. A user without a group counts
as a group.
Slots are whole and shares are not: of five slots 2:1 is 3.33 and 1.67. All get the whole slots of their shares first;
the rest goes to those who owe the least for their weight (start-time fair queueing, `core/turns.py`), so that the parts
are right over time. A debt is no priority: a user without a slot whose job waits goes first as soon as another has
begun `TURNS` jobs since then, for the same weight. No running job is ended for such a part.
A quota is guaranteed: users below it come before all above theirs. Slots of a quota that its owner doesn't use are
lent; when the owner comes back, borrowers shrink at once, and are preempted once the owner's job waited `grace_s`. A
gang that waited `patience_s` goes first, one of each user, so that small jobs don't fill every gap before it for ever.
With a `half_life_s` past use counts: a weight is multiplied by 2^(-U/S), where U is a group's, or within it a user's,
part of the recent use, and S its part by weight. That is the factor of Slurm's classic fair-share algorithm
(priority/multifactor), level by level; use decays with the half-life as it does there.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Container, Hashable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace, nlargest
from itertools import islice, zip_longest
from typing import Annotated, TypeAlias, TypeVar

from msgspec import Meta
from msgspec.structs import replace

from jupyter_elastic.scheduler.policies.common import Configured, Draft, LeastGain, above, least, seat, slots
from jupyter_elastic.scheduler.policies.elastic import ElasticOptions, Guard, settle
from jupyter_elastic.scheduler.policies.speed import rates
from jupyter_elastic.types import JobId, JobView, Plan, Turn, View

Queues: TypeAlias = defaultdict[tuple[str, str], deque[JobView]]
"""Jobs by group and user, by priority, the running ones first."""


ON_SHARE = 0.5
"""Factor of an entity that has used exactly its share."""
Name = TypeVar("Name", bound=Hashable)


def fair_shares(used: Mapping[Name, float], weights: Mapping[Name, float]) -> dict[Name, float]:
    """Return Slurm's fair-share factors of siblings, 2^(-U/S): 1 without any use, 1/2 for having used its share."""
    total, shares = sum(used.values()), sum(weights.values())
    if total <= 0 or shares <= 0:
        return dict.fromkeys(used, 1.0)
    return {name: 2.0 ** -min((one / total) / max(weights[name] / shares, 1e-9), 1000.0) for name, one in used.items()}


def _turn(view: View, row: str, name: str) -> Turn:
    """Return the turn of a user or group; without turns in the view its recent use counts as its debt."""
    if view.turns:
        return view.turns.get(row, {}).get(name, NOBODY)
    used = view.used.get(row, {}).get(name)
    return Turn(owed_s=sum(view.used.get(name, {}).values()) if used is None else used)


def _span(options: Fair.Options) -> str:
    days = options.half_life_s / 86_400
    return f"{days:g} d" if days >= 1 else f"{options.half_life_s:g} s"


Due: TypeAlias = "tuple[bool, int, float, float, float, int, Entity]"
ROUNDING = 1e-9
"""Part of a slot below which a difference is rounding."""
TURNS = 2
"""Jobs of another of the same weight after whose starts one without slots goes first."""
NEXT = 20
"""Maximum number of waiting jobs that the plan names as the next ones."""
NOBODY = Turn()


class Entity:
    """A user or a group: its slots, its share, and its use of one more step."""

    __slots__ = (
        "claim", "growing", "has", "head", "held", "members", "quota", "rank", "share", "since", "turn",
        "users", "waiting", "wants", "weight",
    )  # fmt: skip

    def __init__(self, rank: float, factor: float, quota: int, turn: Turn) -> None:
        self.has = self.held = self.wants = 0
        """Slots that the draft gives the entity, that it holds now, and that it can use (no more than the pool has)."""
        self.rank = max(rank, ROUNDING)
        """Weight without the factor of `half_life_s`."""
        self.turn = turn
        self.since = math.inf
        """Time since which the first waiting job waits for a turn: its submission, or the start of the job before."""
        self.head: JobView | None = None
        self.claim = 0
        """Rank among equals."""
        self.share = 0.0
        self.weight = max(rank * factor, 1e-9)
        self.quota = quota
        self.users: list[Entity] = []
        self.members: list[Due] = []
        self.waiting: deque[JobView] = deque()
        self.growing: list[tuple[int, int, JobView]] = []

    def due(self, at: int) -> Due:
        """Return the sort key in the row: entities below their quota, then whole slots of shares, then parts of slots.

        Whole slots, and the slots that others leave, go to those with the least, and among these to their present
        holders. A part goes to an entity that holds a slot for it now, so that no job is ended for it. Then claims
        decide.
        """
        has = self.has
        left, going = self.share - has, has >= self.held
        if 0 < left < 1:
            return has >= self.quota, 1, going, self.claim, has / self.weight, at, self
        return has >= self.quota, 0 if left > 0 else 2, has / self.weight, going, self.claim, at, self

    def waits(self, head: JobView) -> None:
        """Note the first waiting job of the entity or of a member."""
        since = max((head.queued_at, *self.turn.begun[-1:]))
        if since < self.since:
            self.since, self.head = since, head

    def next(self, draft: Draft) -> JobView | None:
        """Return the first job that the draft leaves waiting for slots which the pool has."""
        first = self.head is not None and self.head.job not in draft.workers
        waiting = [job for job in (self.head,) if job] if first else self.waiting
        fits = (job for job in waiting if 0 < slots(job, least(job)) <= draft.capacity)
        return next((job for job in fits if job.phase == "queued"), None)


def share_out(slots: float, entities: Sequence[Entity]) -> None:
    """Compute the shares: by weight, but no less than the quota and no more than an entity can use."""
    rest = list(entities)
    while rest:
        level = max(slots, 0.0) / sum(entity.weight for entity in rest)
        for entity in rest:
            entity.share = min(max(level * entity.weight, entity.quota), entity.wants)
        wrong = sum(entity.share - level * entity.weight for entity in rest)
        # Those whose bound is on the side that all bounds together lean to are settled; the others share what is left.
        settled = {id(entity) for entity in rest if (entity.share - level * entity.weight) * wrong > 0}
        slots -= sum(entity.share for entity in rest if id(entity) in settled)
        rest = [entity for entity in rest if id(entity) not in settled] if settled else []
    for entity in entities:
        if abs(entity.share - round(entity.share)) < ROUNDING:
            entity.share = round(entity.share)


def claim(entities: Sequence[Entity]) -> None:
    """Compute the ranks among equals: first those that can't wait longer, then by least debt, then by longest wait."""
    latest: dict[float, list[tuple[float, Entity]]] = {}
    for rank in {entity.rank for entity in entities}:  # the two who began so many jobs last, for this weight
        counts = ((TURNS * math.ceil(max(1.0, one.rank / rank)), one) for one in entities)
        begun = [(one.turn.begun[-n], one) for n, one in counts if n <= len(one.turn.begun)]
        latest[rank] = nlargest(2, begun, key=lambda found: found[0])

    def order(entity: Entity) -> tuple[bool, float, float]:
        others = (when for when, one in latest[entity.rank] if one is not entity)
        late = not entity.held and max(others, default=-math.inf) >= entity.since
        return not late, entity.since if late else entity.turn.owed_s / entity.rank, entity.since

    for place, entity in enumerate(sorted(entities, key=order)):
        entity.claim = place


class Fair(Configured):
    """Shares by weight for all, quotas first."""

    name = "fair"
    summary = "Weighted fair shares over groups and users; quotas are guaranteed, and lent while idle."
    work_conserving = True
    interval_s = 10.0

    class Options(ElasticOptions, frozen=True):
        grace_s: Annotated[
            float, Meta(ge=0, le=86_400, description="seconds before a borrower is preempted for an owner who waits")
        ] = 60.0
        patience_s: Annotated[
            float, Meta(ge=1, le=1e7, description="a job of several slots that waited so long goes first")
        ] = 3600.0
        theta: LeastGain = 0.05
        half_life_s: Annotated[
            float,
            Meta(ge=0, le=1e9, description="use counts half after so many seconds; 0: only the present counts"),
        ] = 0.0

    options: Options

    def plan(self, view: View) -> Plan:
        """Fill up by shares; before the grace time is over, without preempting any job."""
        draft, groups = self._filled(view, preempt=True)
        if any(job.job not in draft.workers for job in draft.running):
            waits = [view.now - job.queued_at for job in draft.jobs.values() if not job.size.workers]
            if max(waits, default=0.0) < self.options.grace_s:
                draft, groups = self._filled(view, preempt=False)
        nobody: Queues = defaultdict(deque)
        settle(draft, Guard(self.options, view.now), lambda jobs: self._pour(draft, nobody, {job.job for job in jobs}))
        if self.options.half_life_s:
            self._explain(draft)
        return replace(draft.plan(), turn=self._next(draft, groups))

    def _explain(self, draft: Draft) -> None:
        """Add reasons about overuse to the first waiting job of each user and to jobs that shrink."""
        factors = self._factors(draft.view)
        told = set()
        for job in [*draft.running, *draft.waiting]:
            over = min(factors.get((job.group, ""), 1.0), factors.get((job.group, job.owner), 1.0)) < ON_SHARE
            gets = draft.workers.get(job.job, 0)
            less = gets < job.size.workers or (not gets and job.owner not in told)
            if over and less:
                whose = f"group {job.group}" if factors.get((job.group, ""), 1.0) < ON_SHARE else job.owner
                draft.reasons[job.job] = f"{whose} has used more than a share of late (half-life {_span(self.options)})"
                told.add(job.owner)

    def _factors(self, view: View) -> dict[tuple[str, str], float]:
        """Return the factors of weights by group and user; a group's own has no user. Empty: all weights are whole."""
        if not self.options.half_life_s:
            return {}
        used: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for group, users in view.used.items():
            used[group].update(users)
        for job in view.jobs:
            used[job.group].setdefault(job.owner, 0.0)
        top = {("", user): seconds for user, seconds in used[""].items()}
        top |= {(group, ""): sum(users.values()) for group, users in used.items() if group}
        found = fair_shares(top, {entity: view.weights.get(entity[0] or entity[1], 1.0) for entity in top})
        for group, users in used.items():
            if group:
                members = {(group, user): seconds for user, seconds in users.items()}
                found |= fair_shares(members, {entity: view.weights.get(entity[1], 1.0) for entity in members})
        return found

    def _next(self, draft: Draft, groups: list[Entity]) -> tuple[JobId, ...]:
        """Return the jobs that come next as slots come free, one of each user."""
        ordered = [group for *_, group in sorted(group.due(at) for at, group in enumerate(groups))]
        rows = [[user for *_, user in sorted(user.due(at) for at, user in enumerate(one.users))] for one in ordered]
        users = [user for tier in zip_longest(*rows) for user in tier if user is not None]
        return tuple(islice((job.job for user in users if (job := user.next(draft)) is not None), NEXT))

    def _filled(self, view: View, *, preempt: bool) -> tuple[Draft, list[Entity]]:
        draft = Draft(view)
        if preempt:
            draft.pin()
        else:
            for job in draft.running:
                draft.give(job, least(job))
        queues: Queues = defaultdict(deque)
        for job in draft.by_priority(draft.running + draft.waiting):
            queues[job.group, job.owner].append(job)
        self._overdue(draft, queues)
        return draft, self._pour(draft, queues, draft.workers)

    def _pour(self, draft: Draft, queues: Queues, growing: Container[JobId]) -> list[Entity]:
        """Give free slots by shares to the `queues`, and to the draft's jobs among `growing`; return the groups."""
        groups = self._entities(draft, queues, growing)
        heap = [group.due(at) for at, group in enumerate(groups)]
        heapify(heap)
        while heap and draft.free:
            at, group = heap[0][-2:]
            if self._serve(draft, group):
                heapreplace(heap, group.due(at))
            else:
                heappop(heap)
        return groups

    def _overdue(self, draft: Draft, queues: Queues) -> None:
        """Give minimums to gangs that waited longer than `patience_s`, one for each user, the longest wait first."""
        since = draft.view.now - self.options.patience_s
        late: dict[str, JobView] = {}
        for (_, owner), queue in queues.items():
            waited = (job for job in queue if job.min_slots > 1 and job.phase == "queued" and job.queued_at < since)
            job = next(waited, None)
            if job is not None and (owner not in late or job.queued_at < late[owner].queued_at):
                late[owner] = job
        fresh = [job for job in draft.running if self._fresh(job, draft.view.now)] if late else []
        seat(draft, [*fresh, *sorted(late.values(), key=lambda job: (job.queued_at, job.job))])
        draft.reasons.clear()

    def _fresh(self, job: JobView, now: float) -> bool:
        """True if the job started so recently that preempting it would waste the start."""
        return job.changed_at is None or now - job.changed_at < self.options.cooldown * job.profile.rescale_cost_s

    def _entities(self, draft: Draft, queues: Queues, growing: Container[JobId]) -> list[Entity]:
        """Return the groups with their users; each user has its waiting jobs and those that may grow."""
        weights, quotas = draft.view.weights, draft.view.quotas
        factors = self._factors(draft.view)
        seated: defaultdict[tuple[str, str], list[JobView]] = defaultdict(list)
        for job in draft.jobs.values():
            seated[job.group, job.owner].append(job)
        held: defaultdict[tuple[str, str], int] = defaultdict(int)
        for job in draft.running:
            held[job.group, job.owner] += job.cost(job.size)
        groups: dict[str, Entity] = {}
        users: defaultdict[str, list[Entity]] = defaultdict(list)
        for account in dict.fromkeys([*queues, *seated]):
            group_name, owner = account
            alone = not group_name
            name = group_name or owner
            factor = factors.get((group_name, owner if alone else ""), 1.0)
            if name not in groups:
                turn = _turn(draft.view, "", name)
                groups[name] = Entity(weights.get(name, 1.0), factor, quotas.get(name, 0), turn)
            group = groups[name]
            if alone:
                user = Entity(1.0, 1.0, 0, group.turn)
            else:
                turn, factor = _turn(draft.view, group_name, owner), factors.get(account, 1.0)
                user = Entity(weights.get(owner, 1.0), factor, quotas.get(owner, 0), turn)
            user.held = held[account]
            head = next((job for job in queues[account] if job.phase == "queued"), None)
            if head is not None:
                user.waits(head)
                group.waits(head)
            for job in queues[account] or seated[account]:
                user.wants += job.max_slots + job.min_servers * job.server_cost
                if user.wants >= draft.capacity:
                    break
            for job in seated[account]:
                slots = draft.cost(job)
                user.has += slots
                if job.job in growing:
                    heappush(user.growing, (slots, job.job, job))
            user.waiting = queues[account]
            group.has += user.has
            group.held += user.held
            group.wants = min(group.wants + user.wants, draft.capacity)
            users[name].append(user)
        share_out(draft.capacity, list(groups.values()))
        claim(list(groups.values()))
        for name, group in groups.items():
            share_out(group.share, users[name])
            claim(users[name])
            group.users = users[name]
            group.members = [user.due(at) for at, user in enumerate(group.users)]
            heapify(group.members)
        return list(groups.values())

    def _serve(self, draft: Draft, group: Entity) -> bool:
        """Give one step to the group's poorest user that can use one; False if none can."""
        while group.members:
            at, user = group.members[0][-2:]
            taken = self._start(draft, user) or self._grow(draft, user)
            if taken:
                user.has += taken
                group.has += taken
                if len(group.members) > 1:
                    heapreplace(group.members, user.due(at))
                return True
            heappop(group.members)
        return False

    @staticmethod
    def _start(draft: Draft, user: Entity) -> int:
        waiting, free, seated = user.waiting, draft.free, draft.workers
        while waiting:
            job = waiting.popleft()
            workers = least(job) if job.sizes or job.min_slots > job.max_slots else job.min_slots  # a queue is long
            cost = workers + job.min_servers * job.server_cost
            if workers and cost <= free and job.job not in seated and draft.give(job, workers):
                heappush(user.growing, (cost, job.job, job))
                return cost
        return 0

    def _grow(self, draft: Draft, user: Entity) -> int:
        while user.growing:
            _, _, job = user.growing[0]
            workers = draft.workers[job.job]
            wider = above(job, workers)
            more = wider - workers
            if wider and more <= draft.free:
                speed = rates(job)
                faster = speed(wider) / max(speed(workers), 1e-300) - 1.0 > self.options.theta * more / workers
                if faster and draft.give(job, wider):
                    heapreplace(user.growing, (draft.cost(job), job.job, job))
                    return more
            heappop(user.growing)
        return 0
