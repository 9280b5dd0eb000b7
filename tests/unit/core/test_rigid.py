"""A cell without an elastic loop keeps the size that it started with; it can only be stopped as a whole."""

from __future__ import annotations

import pytest

from jupyter_elastic.errors import BadRequest
from jupyter_elastic.scheduler.policies import DEFAULT
from jupyter_elastic.scheduler.sim import registry
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
from tests.support.books import Books, host


def test_no_plan_changes_the_size_of_a_cell_without_an_elastic_loop() -> None:
    books = Books(host("a", 3))
    job = books.submit(1, 3)
    books.plan({job: 2})
    books.settle(job, elastic=None)
    for size in (1, 3):
        (refused,) = books.plan({job: size})
        assert isinstance(refused, PlanRejected)
        assert books.job(job).slots == ("a:0", "a:1")
    (view,) = books.core.view(books.now).jobs
    assert (view.min_slots, view.max_slots) == (2, 2)
    assert not any(isinstance(data, StopRequested | RescaleRequested) for data in books.plan({job: 2}))
    (stopped,) = books.plan({})
    assert isinstance(stopped, StopRequested)


def test_the_size_is_free_once_a_worker_is_in_an_elastic_loop_whatever_comes_late() -> None:
    books = Books(host("a", 2))
    job = books.submit(1, 2)
    books.plan({job: 2})
    books.settle(job, elastic=False)
    assert "size stays 2: this cell has no elastic loop" in books.core.explain(job, books.now)
    (data,) = books.settle(job)
    assert isinstance(data, JobRunning)
    assert data.elastic
    assert books.core.wants_plan
    assert books.settle(job, elastic=None) == books.settle(job, elastic=False) == []
    assert "size stays" not in books.core.explain(job, books.now)
    assert books.core.view(books.now).jobs[0].min_slots == 1
    assert any(isinstance(data, RescaleRequested) for data in books.plan({job: 1}))


def test_the_next_attempt_may_have_another_size_and_knows_nothing_yet() -> None:
    books = Books(host("a", 3))
    job = books.running(1, 1, 3)
    attempt = books.job(job).attempt
    books.step(ExitReported, job=job, attempt=attempt, outcome="lost")
    books.plan({job: 3})
    assert books.job(job).rigid
    assert books.core.view(books.now).jobs[0].min_slots == 3


def test_a_host_that_goes_takes_all_of_a_job_that_cannot_regroup() -> None:
    books = Books(host("a", 2), host("b", 1))
    job = books.submit(1, 3)
    books.plan({job: 3})
    books.settle(job, elastic=False)
    events = books.step(HostsReported, hosts=(host("a", 2),))
    assert [type(data) for data in events] == [HostsChanged, StopRequested]


def test_the_owner_is_told_that_a_running_cell_cannot_be_resized() -> None:
    books = Books(host("a", 3))
    job = books.submit(1, 2)
    books.plan({job: 2})
    assert books.step(Resize, job=job, min_slots=1, max_slots=3), "nobody knows yet what it is"
    books.settle(job, elastic=False)
    with pytest.raises(BadRequest, match="keeps its 2 slots until its end, because its cell has no elastic loop"):
        books.step(Resize, job=job, min_slots=1, max_slots=1)
    assert books.step(Resize, job=job, min_slots=2, max_slots=2), "that is what it has"


def test_what_a_job_that_begins_anew_would_lose_is_told_to_policies() -> None:
    books = Books(host("a", 2))
    job = books.submit(1, 2)
    books.plan({job: 2})
    books.settle(job, elastic=False)
    since = books.job(job).changed_at
    for later in (10.0, 1000.0, 1000.0):
        (view,) = books.core.view(since + later).jobs
        assert view.profile.rescale_cost_s == Profile().rescale_cost_s + later
    books.settle(job)
    assert books.core.view(since + 2000.0).jobs[0].profile.rescale_cost_s == Profile().rescale_cost_s


def test_the_default_policy_does_not_restart_a_plain_cell_for_a_colleague() -> None:
    policy = registry.create(DEFAULT, {})
    books = Books(host("a", 2))
    books.step(UsePolicy, name=DEFAULT)
    job = books.submit(1, 2)
    books.step(Propose, policy=DEFAULT, plan=policy.plan(books.core.view(books.now)))
    books.settle(job, elastic=False)
    books.now += 20
    books.submit(1, 1, by="bob")
    for _ in range(1000):
        books.now += 20
        books.step(Propose, policy=DEFAULT, plan=policy.plan(books.core.view(books.now)))
        assert books.job(job).size.workers == 2
