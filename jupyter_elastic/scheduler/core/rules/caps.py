"""Enforce the maximum number of slots that users and groups may hold, whatever the policy.

Policies see the jobs such that no plan can exceed a limit: of jobs that would together be too many the first are shown
with ranges that fit, the others wait unseen. A running job keeps at least its minimum.
Knows the state and the views of jobs; must not know policies.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from math import inf

from msgspec.structs import replace

from jupyter_elastic.scheduler.core.rule import Caps, Entity, Rule
from jupyter_elastic.scheduler.core.state import State
from jupyter_elastic.scheduler.core.view import job_view
from jupyter_elastic.types import JobId, JobView, Plan
from jupyter_elastic.types.texts import count


class CappedSlots(Rule):
    """Enforce the caps; users who can't reach all hosts have one of the slots that they can reach."""

    def shows(self, state: State, jobs: list[JobView]) -> tuple[list[JobView], dict[JobId, str]]:
        """Hide jobs beyond the limits and lower the ranges of the others."""
        caps = _reaching(state, self.caps) if state.reached else self.caps
        return within(jobs, caps) if caps else (jobs, {})

    def judge(self, state: State, plan: Plan) -> str:
        """Describe the limit that the plan exceeds."""
        if not self.caps:
            return ""
        return exceeded([job_view(job) for job in state.jobs.values() if job.job in plan.sizes], plan, self.caps) or ""


def _reaching(state: State, caps: Caps) -> Caps:
    """Return the limits, lowered for users who can't reach all hosts to the slots that they can reach."""
    users = dict(caps.users)
    for owner in {job.owner for job in state.jobs.values()}:
        if (reachable := state.reachable(owner)) < inf:
            limit = users.get(owner, caps.default)
            users[owner] = int(reachable if limit is None else min(limit, reachable))
    return replace(caps, users=users)


def within(jobs: Sequence[JobView], caps: Caps) -> tuple[list[JobView], dict[JobId, str]]:
    """Return the jobs that a policy may see, the first of each entity, and the reasons why others are left out."""
    room: dict[Entity, int] = {}
    entities: dict[JobId, list[Entity]] = {}
    max_workers: dict[JobId, int] = {}
    unseen: set[JobId] = set()
    blocked: set[Entity] = set()
    """Entities with a job that waits for their limit; no other job of theirs overtakes it."""
    reasons: dict[JobId, str] = {}
    limited: list[JobView] = []
    known: dict[tuple[str, str], dict[Entity, int]] = {}
    for job in sorted(jobs, key=lambda job: (not job.size.workers, -job.priority)):
        whose = job.owner, job.group
        limits = known.get(whose)
        if limits is None:
            limits = known[whose] = caps.of(*whose)
            for entity, limit in limits.items():
                room.setdefault(entity, limit)
        if not limits:
            continue
        need = _least(job) + job.min_servers
        full = [entity for entity in limits if room[entity] < need or entity in blocked]
        if full and not job.size.workers:
            unseen.add(job.job)
            reasons[job.job] = f"{full[0][1]} may hold {count(limits[full[0]])} at most"
            blocked.update(full)
            continue
        entities[job.job], max_workers[job.job] = list(limits), _least(job)
        limited.append(job)
        _take(room, entities[job.job], need)
    _fill(limited, entities, max_workers, room)
    seen = [_clamped(job, max_workers.get(job.job)) for job in jobs if job.job not in unseen]
    return seen, reasons


def _least(job: JobView) -> int:
    if not job.sizes:
        return job.min_slots
    return min((size for size in job.sizes if size >= job.min_slots), default=job.min_slots)


def _take(room: dict[Entity, int], entities: Sequence[Entity], slots: int) -> None:
    for entity in entities:
        room[entity] -= slots


def _fill(
    jobs: Sequence[JobView], entities: Mapping[JobId, list[Entity]], workers: dict[JobId, int], room: dict[Entity, int]
) -> None:
    """Share out the rest of each limit: first what running jobs hold, then one slot at a time in turn."""
    for job in jobs:
        more = min(max(job.size.workers - workers[job.job], 0), *(max(room[entity], 0) for entity in entities[job.job]))
        workers[job.job] += more
        _take(room, entities[job.job], more)
    turn = deque(job for job in jobs if workers[job.job] < job.max_slots)
    while turn:
        job = turn.popleft()
        if workers[job.job] < job.max_slots and all(room[entity] > 0 for entity in entities[job.job]):
            workers[job.job] += 1
            _take(room, entities[job.job], 1)
            turn.append(job)


def _clamped(job: JobView, workers: int | None) -> JobView:
    if workers is None or workers >= job.max_slots:
        return job
    return replace(job, max_slots=workers, max_servers=job.min_servers)


def exceeded(jobs: Sequence[JobView], plan: Plan, caps: Caps) -> str | None:
    """Describe the limit that a legal plan exceeds; None if none. The minimum of running jobs is never excess."""
    asked: defaultdict[Entity, int] = defaultdict(int)
    least: defaultdict[Entity, int] = defaultdict(int)
    limits: dict[Entity, int] = {}
    for job in jobs:
        size = plan.sizes.get(job.job)
        if size is None or not size.workers:
            continue
        for entity, limit in caps.of(job.owner, job.group).items():
            limits[entity] = limit
            asked[entity] += size.slots
            least[entity] += _least(job) + job.min_servers if job.size.workers else 0
    for entity, slots in asked.items():
        if slots > max(limits[entity], least[entity]):
            return f"it gives {entity[1]} {count(slots)}, and {entity[1]} may hold {limits[entity]}"
    return None
