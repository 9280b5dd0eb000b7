"""Enforce the maximum number of slots that users and groups may hold, whatever the policy.

Policies see the jobs such that no plan can exceed a limit: of jobs that would together be too many the first are shown
with ranges that fit, the others wait unseen. A running job keeps at least its minimum.
Knows the views of jobs; must not know policies.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.types import JobId, JobView, Plan

Entity: TypeAlias = tuple[str, str]
"""(`user` or `group`, name)."""


class Caps(Struct, frozen=True):
    """Maximum numbers of slots, as the administrator configured them."""

    users: Mapping[str, int] = {}
    groups: Mapping[str, int] = {}
    """Maximum number of slots of all members of a group together."""
    default: int | None = None
    """Maximum for each user who is not named; None: no limit."""

    def __bool__(self) -> bool:
        return self.default is not None or bool(self.users or self.groups)

    def of(self, owner: str, group: str) -> dict[Entity, int]:
        """Return the limits that a job of this owner and group counts for."""
        user, group_limit = self.users.get(owner, self.default), self.groups.get(group) if group else None
        limits: dict[Entity, int] = {}
        if user is not None:
            limits["user", owner] = user
        if group_limit is not None:
            limits["group", group] = group_limit
        return limits


def within(jobs: Sequence[JobView], most: Caps) -> tuple[list[JobView], dict[JobId, str]]:
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
            limits = known[whose] = most.of(*whose)
            for entity, limit in limits.items():
                room.setdefault(entity, limit)
        if not limits:
            continue
        need = _least(job) + job.min_servers
        full = [entity for entity in limits if room[entity] < need or entity in blocked]
        if full and not job.size.workers:
            unseen.add(job.job)
            reasons[job.job] = f"{full[0][1]} may hold {_slots(limits[full[0]])} at most"
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


def exceeded(jobs: Sequence[JobView], plan: Plan, most: Caps) -> str | None:
    """Describe the limit that a legal plan exceeds; None if none. The minimum of running jobs is never excess."""
    asked: defaultdict[Entity, int] = defaultdict(int)
    least: defaultdict[Entity, int] = defaultdict(int)
    limits: dict[Entity, int] = {}
    for job in jobs:
        size = plan.sizes.get(job.job)
        if size is None or not size.workers:
            continue
        for entity, limit in most.of(job.owner, job.group).items():
            limits[entity] = limit
            asked[entity] += size.slots
            least[entity] += _least(job) + job.min_servers if job.size.workers else 0
    for entity, slots in asked.items():
        if slots > max(limits[entity], least[entity]):
            return f"it gives {entity[1]} {_slots(slots)}, and {entity[1]} may hold {limits[entity]}"
    return None


def _slots(number: int) -> str:
    return f"{number} slot{'' if number == 1 else 's'}"
