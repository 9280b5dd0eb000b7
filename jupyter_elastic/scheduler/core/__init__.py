"""Pure core of the scheduler: a ledger of slots, a queue, and a judge of plans. No clock, chance, socket or disk.

`Core.step(stimulus)` decides which events follow, evolves the state by them and reacts with orders. The state follows
from the events alone, so folding a journal gives the same state again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from math import inf, isfinite

from msgspec.structs import replace

from jupyter_elastic.scheduler.core.decide import decide
from jupyter_elastic.scheduler.core.decide_commands import found
from jupyter_elastic.scheduler.core.evolve import evolve
from jupyter_elastic.scheduler.core.explain import explain, until
from jupyter_elastic.scheduler.core.react import react
from jupyter_elastic.scheduler.core.rule import DAEMON, Caps, Rule
from jupyter_elastic.scheduler.core.rules import RULES
from jupyter_elastic.scheduler.core.state import FALLBACK, Job, State, limit_at
from jupyter_elastic.scheduler.core.view import Infos, Views, slot_infos
from jupyter_elastic.types import (
    ACTIVE,
    AgentChanged,
    AnyEffect,
    AnyEventData,
    DrainsChanged,
    Event,
    HoldEnded,
    HostsChanged,
    JobEnded,
    JobId,
    JobInfo,
    JobProgressed,
    JobRequeued,
    JobResized,
    JobRunning,
    JobStarted,
    JobSubmitted,
    PlanRejected,
    PolicyFailed,
    PolicyUsed,
    Propose,
    SlotInfo,
    SlotsReleased,
    Stimulus,
    View,
)

__all__ = ["Caps", "Core", "State"]

_NEWS = (
    JobSubmitted,
    JobRunning,
    SlotsReleased,
    JobRequeued,
    JobResized,
    JobEnded,
    HoldEnded,
    HostsChanged,
    DrainsChanged,
    PolicyUsed,
    AgentChanged,
)
"""Events after which a policy may want a different allocation."""


class Core:
    """The state and its views; the daemon and the simulator each run one."""

    def __init__(
        self,
        state: State | None = None,
        *,
        weights: Mapping[str, float] | None = None,
        quotas: Mapping[str, int] | None = None,
        most: Caps | None = None,
        seed: int = 0,
        lease_s: float = 0.0,
        rules: Sequence[type[Rule]] = RULES,
    ) -> None:
        """Begin with an empty state or a snapshot's; the other arguments configure the pool.

        No plan may exceed `most`. `lease_s` is the term of the leases that attempts get; 0: leases don't run out.
        `rules` hold whatever the policy.
        """
        self.state = state if state is not None else State()
        self._lease_s = lease_s
        self._views = Views(seed)
        self._infos = Infos()
        self._rule_types = rules
        self.share(weights or {}, quotas or {}, most or Caps())

    def share(self, weights: Mapping[str, float], quotas: Mapping[str, int], most: Caps) -> None:
        """Use these weights, quotas and limits from now on."""
        self._weights, self._quotas = dict(weights), dict(quotas)
        self._rules = tuple(rule(most, self._quotas) for rule in self._rule_types)
        self._wants_plan = True

    # --- in -----------------------------------------------------------------------------------------------------------

    def step(self, stimulus: Stimulus) -> tuple[tuple[Event, ...], tuple[AnyEffect, ...]]:
        """Fold the events that follow from a stimulus into the state, and return them with the resulting orders.

        Raises BadRequest or NotFound for a command that can't be granted; the state then stays unchanged. A report
        never raises; a stale report yields nothing.
        """
        at = max(stimulus.at, self.state.at) if isfinite(stimulus.at) else self.state.at
        stimulus = stimulus if at == stimulus.at else replace(stimulus, at=at)
        decided = decide(self.state, stimulus, self._rules, self._views.held_back)
        policy = self.state.policy
        events = self._write(decided, at, stimulus.by, stimulus.id)
        if isinstance(stimulus, Propose | PolicyFailed) and stimulus.policy == policy:
            self._wants_plan = _again(policy, events)
        for rule in self._rules:
            events += self._write(rule.after(self.state, stimulus, self._rules), at, DAEMON, stimulus.id)
        return events, tuple(react(self.state, [event.data for event in events]))

    def _write(self, decided: Sequence[AnyEventData], at: float, by: str, cause: str) -> tuple[Event, ...]:
        """Fold what was decided into the state and return it as events."""
        events = tuple(
            Event(seq=seq, at=at, by=by, cause=cause, data=self._leased(data))
            for seq, data in enumerate(decided, self.state.seq + 1)
        )
        for event in events:
            self.fold(event)
        return events

    def _leased(self, data: AnyEventData) -> AnyEventData:
        return replace(data, lease_s=self._lease_s) if isinstance(data, JobStarted) else data

    def fold(self, event: Event) -> None:
        """Fold an event into the state, as a replay does with each line of the journal."""
        data = event.data
        sizes = self._measured(data.job) if isinstance(data, JobProgressed) else 0
        evolve(self.state, event)
        self._views.touch(data)
        self._infos.touch(data)
        if isinstance(data, _NEWS) or (isinstance(data, JobProgressed) and self._measured(data.job) > sizes):
            self._wants_plan = True

    def _measured(self, job_id: JobId) -> int:
        """Count the sizes of the job that have a measured speed."""
        job = self.state.jobs.get(job_id)
        return len(job.learned.points) if job else 0

    # --- out ----------------------------------------------------------------------------------------------------------

    @property
    def wants_plan(self) -> bool:
        """True while something has changed that the policy has not seen yet.

        After a refused plan any policy but the fallback is asked again at once, so that a policy which always fails is
        soon replaced instead of leaving the pool idle.
        """
        return self._wants_plan

    def view(self, now: float) -> View:
        """Return all that a policy may know at `now`."""
        return self._views.view(self.state, now, self._rules, self._weights, self._quotas)

    def jobs(
        self,
        *,
        all: bool = False,  # noqa: A002
        job: JobId | None = None,
        limit: int = 1000,
        owner: str = "",
    ) -> list[JobInfo]:
        """Return at most `limit` unfinished jobs (`all`: ended jobs too), oldest first, or only the one `job`.

        Jobs with slots come in first, then the newest. `owner`: only that user's jobs. Raises NotFound if there is no
        such job.
        """
        if job is not None:
            return [self._infos.of(self.state, found(self.state, job))]

        def newest(jobs: dict[JobId, Job]) -> list[Job]:
            mine = (one for one in reversed(jobs.values()) if one.phase not in ACTIVE and owner in {"", one.owner})
            return list(islice(mine, limit))

        held = [one for one in self.state.active_jobs() if owner in {"", one.owner}][:limit]
        ended = newest(self.state.ended) if all else []
        others = sorted([*newest(self.state.jobs), *ended], key=lambda one: one.job)
        shown = [*held, *others[max(len(others) - (limit - len(held)), 0) :]]
        return [self._infos.of(self.state, one) for one in sorted(shown, key=lambda one: one.job)]

    def slots(self) -> list[SlotInfo]:
        """Return every slot of the pool."""
        return slot_infos(self.state)

    def explain(self, job: JobId, now: float, *, whole: bool = True) -> str:
        """Explain why the job waits or holds its slots; `whole`: as its owner may know it. NotFound if none."""
        return explain(
            self.state, found(self.state, job), now, self._rules, self._views.held_back.get(job, ""), whole=whole
        )

    def until(self, job: JobId, now: float) -> str:
        """Return the sentence of `explain` about the job's start; empty if waiting alone does not help."""
        return until(self.state, found(self.state, job), now, self._rules)

    def next_wakeup(self, now: float) -> float | None:
        """Return the time (not before `now`) at which the next `Tick` is due; None: never.

        A tick is due when a job's time limit ends, or a rule says so.
        """
        limits = (limit for job in self.state.active_jobs() if (limit := limit_at(job)) is not None)
        due = min((*limits, *(rule.wakes_at(self.state) for rule in self._rules)), default=inf)
        return None if due == inf else max(due, now)


def _again(policy: str, events: tuple[Event, ...]) -> bool:
    """True if the policy is to be asked again right after this plan."""
    switched = any(isinstance(event.data, PolicyUsed) for event in events)
    refused = any(isinstance(event.data, PlanRejected) for event in events)
    return switched or (refused and policy != FALLBACK)
