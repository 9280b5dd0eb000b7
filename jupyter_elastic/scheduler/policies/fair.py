"""Weighted fair shares over groups and their users, with guaranteed quotas.

Source: Ghodsi et al., "Dominant Resource Fairness" (NSDI 2011) by progressive filling; with one resource, the slot, it
is weighted max-min. Each step goes to the group with the least (slots / weight), in it to the user with the least, and
there to the next waiting job's minimum, else to the growth of that user's smallest job. Who has no group is one.

A quota is guaranteed: who is below it comes before everybody above theirs. What a quota's owner doesn't use is lent;
when the owner comes back, borrowers shrink at once, and are preempted once the owner's job waited `grace_s`. A gang
that waited `patience_s` goes first, one of each user, so that small jobs don't fill every gap before it for ever.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Container
from heapq import heapify, heappop, heappush, heapreplace
from typing import Annotated, TypeAlias

from msgspec import Meta

from jupyter_elastic.scheduler.policies.common import Configured, Draft, LeastGain, above, least, seat
from jupyter_elastic.scheduler.policies.elastic import Guard, Guarded, settle
from jupyter_elastic.scheduler.policies.speed import rates
from jupyter_elastic.types import JobId, JobView, Plan, View

Queues: TypeAlias = defaultdict[tuple[str, str], deque[JobView]]
"""Jobs by group and user, by priority, the running first."""


class Party:
    """A user or a group: what it has, what it is due, and what it would do with one step more."""

    __slots__ = ("growing", "has", "members", "quota", "waiting", "weight")

    def __init__(self, weight: float, quota: int) -> None:
        self.has = 0
        self.weight = max(weight, 1e-9)
        self.quota = quota
        self.members: list[tuple[bool, float, int, Party]] = []
        self.waiting: deque[JobView] = deque()
        self.growing: list[tuple[int, int, JobView]] = []

    def due(self, at: int) -> tuple[bool, float, int, Party]:
        """Its place in the row: who has the least goes first, those below their quota before the others."""
        return self.has >= self.quota, self.has / self.weight, at, self


class Fair(Configured):
    """Everybody's share by weight, quotas first."""

    name = "fair"
    summary = "Weighted fair shares over groups and users; quotas are guaranteed, and lent while idle."
    work_conserving = True
    interval_s = 10.0

    class Options(Guarded, frozen=True):
        grace_s: Annotated[
            float, Meta(ge=0, le=86_400, description="seconds before a borrower is preempted for an owner who waits")
        ] = 60.0
        patience_s: Annotated[
            float, Meta(ge=1, le=1e7, description="a job of several slots that waited so long goes first")
        ] = 3600.0
        theta: LeastGain = 0.05

    options: Options

    def plan(self, view: View) -> Plan:
        """Fill up by shares; before the grace time is over, without preempting anybody."""
        draft = self._filled(view, preempt=True)
        if any(job.job not in draft.workers for job in draft.running):
            waits = [view.now - job.queued_at for job in draft.jobs.values() if not job.size.workers]
            if max(waits, default=0.0) < self.options.grace_s:
                draft = self._filled(view, preempt=False)
        nobody: Queues = defaultdict(deque)
        settle(draft, Guard(self.options, view.now), lambda jobs: self._pour(draft, nobody, {job.job for job in jobs}))
        return draft.plan()

    def _filled(self, view: View, *, preempt: bool) -> Draft:
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
        self._pour(draft, queues, draft.workers)
        return draft

    def _pour(self, draft: Draft, queues: Queues, growing: Container[JobId]) -> None:
        """Free slots by shares to the `queues`, and to the seated jobs among `growing`."""
        groups = self._parties(draft, queues, growing)
        heap = [group.due(at) for at, group in enumerate(groups)]
        heapify(heap)
        while heap and draft.free:
            at, group = heap[0][2:]
            if self._serve(draft, group):
                heapreplace(heap, group.due(at))
            else:
                heappop(heap)

    def _overdue(self, draft: Draft, queues: Queues) -> None:
        """The minimum for gangs that waited past all patience, one for each user, the longest wait first."""
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
        """Whether it started so recently that preempting it would waste the start."""
        return job.changed_at is None or now - job.changed_at < self.options.cooldown * job.profile.rescale_cost_s

    @staticmethod
    def _parties(draft: Draft, queues: Queues, growing: Container[JobId]) -> list[Party]:
        """Groups with their users; each user with its jobs that wait and those that may grow."""
        weights, quotas = draft.view.weights, draft.view.quotas
        seated: defaultdict[tuple[str, str], list[JobView]] = defaultdict(list)
        for job in draft.jobs.values():
            seated[job.group, job.owner].append(job)
        groups: dict[str, Party] = {}
        for group_name, owner in dict.fromkeys([*queues, *seated]):
            alone = not group_name
            name = group_name or owner
            group = groups.setdefault(name, Party(weights.get(name, 1.0), quotas.get(name, 0)))
            user = Party(1.0 if alone else weights.get(owner, 1.0), 0 if alone else quotas.get(owner, 0))
            for job in seated[group_name, owner]:
                held = draft.cost(job)
                user.has += held
                if job.job in growing:
                    heappush(user.growing, (held, job.job, job))
            user.waiting = queues[group_name, owner]
            group.has += user.has
            group.members.append(user.due(len(group.members)))
        for group in groups.values():
            heapify(group.members)
        return list(groups.values())

    def _serve(self, draft: Draft, group: Party) -> bool:
        """One step for the group's poorest user that can use one; False when nobody can."""
        while group.members:
            at, user = group.members[0][2:]
            taken = self._start(draft, user) or self._grow(draft, user)
            if taken:
                user.has += taken
                group.has += taken
                heapreplace(group.members, user.due(at))
                return True
            heappop(group.members)
        return False

    @staticmethod
    def _start(draft: Draft, user: Party) -> int:
        waiting, free, seated = user.waiting, draft.free, draft.workers
        while waiting:
            job = waiting.popleft()
            workers = least(job)
            cost = workers + job.min_servers
            if workers and cost <= free and job.job not in seated and draft.give(job, workers):
                heappush(user.growing, (cost, job.job, job))
                return cost
        return 0

    def _grow(self, draft: Draft, user: Party) -> int:
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
