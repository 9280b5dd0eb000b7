"""A cell without an elastic loop keeps the size that it started with; it can only be stopped as a whole."""

from __future__ import annotations

import pytest

from jupyter_elastic.scheduler.policies import DEFAULT
from jupyter_elastic.scheduler.sim.simulation import make_policy
from jupyter_elastic.types import (
    ExitReported,
    HostsChanged,
    HostsReported,
    JobRunning,
    PlanRejected,
    Profile,
    Propose,
    RescaleRequested,
    Resize,
    StopRequested,
    UsePolicy,
)
from jupyter_elastic.types.errors import BadRequest
from tests.support.harness import Harness, host


def test_no_plan_changes_the_size_of_a_cell_without_an_elastic_loop() -> None:
    pool = Harness(host("a", 3))
    job = pool.submit(1, 3)
    pool.plan({job: 2})
    pool.settle(job, elastic=None)
    for size in (1, 3):
        (refused,) = pool.plan({job: size})
        assert isinstance(refused, PlanRejected)
        assert pool.job(job).slots == ("a:0", "a:1")
    (view,) = pool.core.view(pool.now).jobs
    assert (view.min_slots, view.max_slots) == (2, 2)
    assert not any(isinstance(data, StopRequested | RescaleRequested) for data in pool.plan({job: 2}))
    (stopped,) = pool.plan({})
    assert isinstance(stopped, StopRequested)


def test_the_size_is_free_once_a_worker_is_in_an_elastic_loop_whatever_comes_late() -> None:
    pool = Harness(host("a", 2))
    job = pool.submit(1, 2)
    pool.plan({job: 2})
    pool.settle(job, elastic=False)
    assert "size stays 2: this cell has no elastic loop" in pool.core.explain(job, pool.now)
    (data,) = pool.settle(job)
    assert isinstance(data, JobRunning)
    assert data.elastic
    assert pool.core.wants_plan
    assert pool.settle(job, elastic=None) == pool.settle(job, elastic=False) == []
    assert "size stays" not in pool.core.explain(job, pool.now)
    assert pool.core.view(pool.now).jobs[0].min_slots == 1
    assert any(isinstance(data, RescaleRequested) for data in pool.plan({job: 1}))


def test_the_next_attempt_may_have_another_size_and_knows_nothing_yet() -> None:
    pool = Harness(host("a", 3))
    job = pool.running(1, 1, 3)
    attempt = pool.job(job).attempt
    pool.step(ExitReported, job=job, attempt=attempt, outcome="lost")
    pool.plan({job: 3})
    assert pool.job(job).rigid
    assert pool.core.view(pool.now).jobs[0].min_slots == 3


def test_a_host_that_goes_takes_all_of_a_job_that_cannot_regroup() -> None:
    pool = Harness(host("a", 2), host("b", 1))
    job = pool.submit(1, 3)
    pool.plan({job: 3})
    pool.settle(job, elastic=False)
    events = pool.step(HostsReported, hosts=(host("a", 2),))
    assert [type(data) for data in events] == [HostsChanged, StopRequested]


def test_the_owner_is_told_that_a_running_cell_cannot_be_resized() -> None:
    pool = Harness(host("a", 3))
    job = pool.submit(1, 2)
    pool.plan({job: 2})
    assert pool.step(Resize, job=job, min_slots=1, max_slots=3), "nobody knows yet what it is"
    pool.settle(job, elastic=False)
    with pytest.raises(BadRequest, match="keeps its 2 slots until its end, because its cell has no elastic loop"):
        pool.step(Resize, job=job, min_slots=1, max_slots=1)
    assert pool.step(Resize, job=job, min_slots=2, max_slots=2), "that is what it has"


def test_what_a_job_that_begins_anew_would_lose_is_told_to_policies() -> None:
    pool = Harness(host("a", 2))
    job = pool.submit(1, 2)
    pool.plan({job: 2})
    pool.settle(job, elastic=False)
    since = pool.job(job).changed_at
    for later in (10.0, 1000.0, 1000.0):
        (view,) = pool.core.view(since + later).jobs
        assert view.profile.rescale_cost_s == Profile().rescale_cost_s + later
    pool.settle(job)
    assert pool.core.view(since + 2000.0).jobs[0].profile.rescale_cost_s == Profile().rescale_cost_s


def test_the_default_policy_does_not_restart_a_plain_cell_for_a_colleague() -> None:
    policy = make_policy(DEFAULT, {})
    pool = Harness(host("a", 2))
    pool.step(UsePolicy, name=DEFAULT)
    job = pool.submit(1, 2)
    pool.step(Propose, policy=DEFAULT, plan=policy.plan(pool.core.view(pool.now)))
    pool.settle(job, elastic=False)
    pool.now += 20
    pool.submit(1, 1, by="bob")
    for _ in range(1000):
        pool.now += 20
        pool.step(Propose, policy=DEFAULT, plan=policy.plan(pool.core.view(pool.now)))
        assert pool.job(job).size.workers == 2
