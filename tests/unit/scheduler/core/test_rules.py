"""The interface of the side rules: a rule of one's own works through step, plan, view and explain."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jupyter_elastic.scheduler.core.rule import DAEMON, Reserved, Rule, Rules, SuitableHosts
from jupyter_elastic.scheduler.core.rules import RULES
from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import (
    AnyEventData,
    JobId,
    JobStarted,
    JobView,
    Plan,
    PlanRejected,
    Stimulus,
    StopRequested,
    Tick,
)
from tests.support.harness import Harness, host

CURFEW = 200.0


class Curfew(Rule):
    """From `CURFEW` on no job of a guest runs, and no guest ever uses the host `quiet` or more than two slots."""

    def after(self, state: State, stimulus: Stimulus, rules: Rules) -> Sequence[AnyEventData]:
        guests = [job for job in state.active_jobs() if job.owner == "guest" and job.phase != "stopping"]
        late = guests if stimulus.at >= CURFEW else []
        return [StopRequested(job=job.job, attempt=job.attempt, how="preempt", reason="curfew") for job in late]

    def hosts(self, state: State) -> SuitableHosts:
        others = frozenset(one.name for one in state.hosts if one.name != "quiet")
        return lambda job: others if job.owner == "guest" else None

    def reserves(self, state: State) -> Reserved:
        return Reserved(1 if state.at >= CURFEW else 0)

    def shows(self, state: State, jobs: list[JobView]) -> tuple[list[JobView], dict[JobId, str]]:
        hidden = {job.job: "it is night" for job in jobs if job.owner == "guest" and state.at >= CURFEW}
        return [job for job in jobs if job.job not in hidden], hidden

    def judge(self, state: State, plan: Plan) -> str:
        asked = sum(size.slots for job, size in plan.sizes.items() if state.owner_of(job) == "guest")
        return f"it gives guests {asked} slots" if asked > 2 else ""

    def explain(self, state: State, job: Job, now: float, *, whole: bool) -> list[str]:
        return [f"Guests may run until {CURFEW:g}."] if job.owner == "guest" else []

    def wakes_at(self, state: State) -> float:
        return CURFEW


def pool_of(*rules: type[Rule]) -> Harness:
    return Harness(host("quiet", 2), host("loud", 4), rules=(*RULES, *rules))


def test_a_rule_of_its_own_works_through_step_plan_view_and_explain() -> None:
    pool = pool_of(Curfew)
    ours, guests = pool.submit(1, 2), pool.submit(1, 4, by="guest")
    (refused,) = pool.plan({ours: 2, guests: 4})
    assert refused == PlanRejected(policy="fifo", reason="illegal plan: it gives guests 4 slots")
    started = {data.job: data for data in pool.plan({ours: 1, guests: 2}) if isinstance(data, JobStarted)}
    assert started[guests].slots == ("loud:0", "loud:1")
    assert "Guests may run until 200." in pool.core.explain(guests, pool.now)
    assert "Guests" not in pool.core.explain(ours, pool.now)
    assert pool.core.view(pool.now).capacity == 6
    assert pool.core.next_wakeup(pool.now) == CURFEW
    pool.now = CURFEW
    assert [data for data in pool.step(Tick, by=DAEMON) if isinstance(data, StopRequested)] == [
        StopRequested(job=guests, attempt=1, how="preempt", reason="curfew")
    ]
    assert (pool.events[-1].by, pool.events[-1].cause) == (DAEMON, "s201.0")
    view = pool.core.view(pool.now)
    assert (view.capacity, [job.job for job in view.jobs]) == (5, [ours])


def test_what_a_rule_hides_is_told_to_all_who_read_the_plan() -> None:
    pool = pool_of(Curfew)
    pool.now = CURFEW
    guests = pool.submit(1, 1, by="guest")
    assert pool.core.view(pool.now).jobs == ()
    pool.plan({})
    assert pool.core.state.reasons == {guests: "it is night"}
    assert "Policy fifo says: it is night." in pool.core.explain(guests, pool.now)


@pytest.mark.parametrize("rule", RULES)
def test_the_core_works_without_any_one_rule(rule: type[Rule]) -> None:
    pool = Harness(host("a", 2), rules=[one for one in RULES if one is not rule])
    job = pool.running(2)
    assert pool.core.view(pool.now).jobs[0].job == job
    assert "is running with 2 workers" in pool.core.explain(job, pool.now)
    assert pool.core.next_wakeup(pool.now) is None
