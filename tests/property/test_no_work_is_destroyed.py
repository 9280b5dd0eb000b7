"""No policy here takes the slots of a job that would lose all before it has run as long as others waited."""

from __future__ import annotations

import random
from importlib import metadata
from typing import Any

import pytest

from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.scheduler.sim.simulated_hosts import pool
from jupyter_elastic.scheduler.sim.simulation import Costs, Simulation, make_policy
from jupyter_elastic.scheduler.sim.workload import TraceJob
from jupyter_elastic.types import (
    Event,
    ExitReported,
    JobEnded,
    JobRequeued,
    JobStarted,
    JobSubmitted,
    RunningReported,
    StopRequested,
)
from tests.support.harness import Harness, host

SHELF = sorted(entry.name for entry in metadata.entry_points(group="jupyter_elastic.policies"))
BOUND_S = 3600.0
"""Who has waited so long without a slot may take one of a job that has run so long; the next time, twice as long."""


class Plain(Simulation):
    """All cells are plain: they have no elastic loop, and begin anew when their slots were taken."""

    def _report(self, kind: Any, life: Any, attempt: int, **what: Any) -> None:
        if kind is RunningReported:
            what["elastic"] = False
        super()._report(kind, life, attempt, **what)

    def _exit(self, life: Any, outcome: Any) -> None:
        if outcome == "preempted":
            life.done = 0.0
        super()._exit(life, outcome)


def crowd(seed: int) -> list[TraceJob]:
    """Eight users, 26 jobs of 150 to 1,200 s, one of which has quotas and comes late."""
    chance = random.Random(seed)
    return [
        TraceJob(
            name="j", submitted=chance.choice((0.0, chance.uniform(0, 600))), work=chance.uniform(150, 1_200),
            speed=lambda workers: workers**0.9, owner=f"u{number % 8}", reports=chance.random() < 0.5,
            min_slots=chance.choice((1, 1, 2)), max_slots=4, priority=chance.choice((0, 0, 0, 5)),
            estimate=chance.choice((None, 600.0)),
        )
        for number in range(26)
    ]  # fmt: skip


def events(policy: str, seed: int) -> list[Event]:
    run = Plain(
        crowd(seed), make_policy(policy), policy, pool(1, 8), keep_events=True, costs=Costs(start=1.0, release=0.1),
        quotas={"u7": 3},
    )  # fmt: skip
    run.run()
    return run.events


@pytest.mark.parametrize("policy", SHELF)
def test_a_plain_job_is_preempted_once_at_most_and_not_for_one_that_waited_longer(policy: str) -> None:
    queued: dict[int, float] = {}
    started: dict[int, float] = {}
    times: dict[int, int] = {}
    taken: list[tuple[int, float]] = []
    for event in events(policy, seed=5):
        data = event.data
        if isinstance(data, JobSubmitted | JobRequeued):
            queued[data.job] = event.at
        elif isinstance(data, JobStarted):
            started[data.job] = event.at
            while taken:  # its slots went to this one
                job, ran = taken.pop()
                assert job == data.job or ran >= min(event.at - queued[data.job], BOUND_S) - 2.0
        elif isinstance(data, StopRequested) and data.how == "preempt":
            ran = event.at - started[data.job]
            times[data.job] = times.get(data.job, 0) + 1
            assert times[data.job] == 1 or ran >= BOUND_S
            taken.append((data.job, ran))
        elif isinstance(data, JobEnded):
            times.pop(data.job, None)


def preemptible(core: Core, job: int, now: float) -> bool:
    return next(one.preemptible for one in core.view(now).jobs if one.job == job)


def plain(pool: Harness, **more: Any) -> int:
    job = pool.submit(1, 1, **more)
    pool.plan({**{one.job: one.size for one in pool.core.view(pool.now).jobs if one.size.workers}, job: 1})
    pool.settle(job, elastic=False)
    return job


def test_whose_slots_may_be_taken() -> None:
    pool = Harness(host("a", 2))
    first = plain(pool, by="bob")
    assert not preemptible(pool.core, first, pool.now), "nobody waits"
    pool.submit(1, 1, by="ann")
    second = plain(pool, by="cyd")
    assert preemptible(pool.core, first, pool.now), "it ran before the other came"
    assert not preemptible(pool.core, second, pool.now), "the other had waited already"
    assert not preemptible(pool.core, second, pool.now + BOUND_S - 100.0)
    assert preemptible(pool.core, second, pool.now + BOUND_S + 100.0), "nothing else gave the other a slot"


def test_never_twice_in_a_row_within_the_bound() -> None:
    pool = Harness(host("a", 1))
    job = plain(pool, by="bob")
    pool.plan({})
    pool.step(ExitReported, job=job, attempt=1, outcome="preempted")
    pool.plan({job: 1})
    assert not preemptible(pool.core, job, pool.now), "also while it starts again"
    pool.settle(job, elastic=False)
    pool.submit(1, 1, by="ann")
    assert not preemptible(pool.core, job, pool.now)
    assert not preemptible(pool.core, job, pool.now + BOUND_S + 100.0)
    assert preemptible(pool.core, job, pool.now + 2 * BOUND_S + 100.0)


def test_who_commits_may_be_paused_as_before() -> None:
    pool = Harness(host("a", 1))
    job = pool.running(1, 1, 1, by="bob")
    pool.submit(1, 1, by="ann")
    assert preemptible(pool.core, job, pool.now)
