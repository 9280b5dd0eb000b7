"""Interface of the side rules: what holds in a pool whatever its policy, such as limits, drains and reservations.

`core.rules.RULES` is the tuple of them; the core asks each in that order. A rule keeps nothing between two calls: its
answers follow from the state and the administrator's limits, so that a replay and a second core give the same.
Knows the state; must not know a single rule, nor policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import AnyEventData, JobId, JobView, Plan, Stimulus

DAEMON = "daemon"
"""Author of events that nobody requested."""
Entity: TypeAlias = tuple[str, str]
"""(`user` or `group`, name)."""
SuitableHosts: TypeAlias = Callable[[Job], frozenset[str] | None]
"""Names of the hosts that may give a job new slots now; None: all may."""


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


class Reserved(NamedTuple):
    """Slots that no policy sees, and the waiting jobs that they are for."""

    slots: int = 0
    """Number of slots among those that are free or will be soon."""
    jobs: frozenset[JobId] = frozenset()
    """Jobs that no policy sees either; for the other rules they count as if they held their slots."""


class Rule:
    """A side rule. A subclass overrides the methods for what it decides; each default says that all is allowed."""

    def __init__(self, caps: Caps, quotas: Mapping[str, int]) -> None:
        """Begin with the limits, and the guaranteed slots by user and group, which are configuration, not history."""
        self.caps, self.quotas = caps, quotas

    def after(self, state: State, stimulus: Stimulus, rules: Rules) -> Sequence[AnyEventData]:
        """Return the events that follow once those of the stimulus, and of the rules before, are folded."""
        return ()

    def hosts(self, state: State) -> SuitableHosts | None:
        """Return which hosts may serve a job, for a state that doesn't change meanwhile; None: all serve all jobs."""
        return None

    def reserves(self, state: State) -> Reserved:
        """Return the slots that are kept from plans."""
        return Reserved()

    def shows(self, state: State, jobs: list[JobView]) -> tuple[list[JobView], dict[JobId, str]]:
        """Return the jobs as the policy may see them, and the reasons, for people, why the missing ones are hidden."""
        return jobs, {}

    def judge(self, state: State, plan: Plan) -> str:
        """Return the reason why a plan that is legal otherwise breaks this rule; empty if it does not."""
        return ""

    def explain(self, state: State, job: Job, now: float, *, whole: bool) -> list[str]:
        """Return lines about this job for people; `whole`: for its owner, else for the other users."""
        return []

    def wakes_at(self, state: State) -> float:
        """Return the time at which `after` is due without another stimulus; infinity: never."""
        return inf


Rules: TypeAlias = Sequence[Rule]


def suitable_hosts(state: State, rules: Rules) -> SuitableHosts:
    """Return a function that gives the hosts which all rules allow a job."""
    found = [hosts for rule in rules if (hosts := rule.hosts(state)) is not None]
    if len(found) == 1:
        return found[0]

    def of(job: Job) -> frozenset[str] | None:
        limited = [only for hosts in found if (only := hosts(job)) is not None]
        return frozenset.intersection(*limited) if limited else None

    return of


def reserved(state: State, rules: Rules) -> Reserved:
    """Return what the rules reserve together."""
    found = [rule.reserves(state) for rule in rules]
    return Reserved(sum(one.slots for one in found), frozenset().union(*(one.jobs for one in found)))
