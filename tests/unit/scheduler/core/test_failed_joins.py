"""A newcomer that could not join: the job gives its slot back, says why it stays at its size, and does not grow."""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_elastic import types as t
from jupyter_elastic.client.job_model import JobModel
from jupyter_elastic.scheduler.policies import DEFAULT
from jupyter_elastic.scheduler.sim.simulation import make_policy
from tests.support.harness import Harness, host

WHY = "rank 1 could not join: ValueError: 7, line 4 of the cell; the job stays at 1"


def grown(pool: Harness, *, to: int = 2, **spec: Any) -> int:
    """A job of one worker that is told to grow."""
    job = pool.running(1, 1, 4, **spec)
    pool.plan({job: to})
    return job


def fails(pool: Harness, job: int, *empty: str, count: int = 1, generation: int = 2) -> list[t.AnyEventData]:
    about = {"attempt": 1, "rank": 1, "slot": empty[0], "cause": "ValueError: 7, line 4 of the cell"}
    return pool.step(t.DeathReported, job=job, count=count, empty=empty, generation=generation, **about)


def asks(pool: Harness, name: str = DEFAULT) -> list[t.AnyEventData]:
    """What follows from the plan of a policy."""
    pool.step(t.UsePolicy, name=name)
    return pool.step(t.Propose, by="daemon", policy=name, plan=make_policy(name, {}).plan(pool.core.view(pool.now)))


def test_its_slot_goes_back_and_the_job_stays_at_its_size() -> None:
    pool = Harness(host("a", 2))
    job = grown(pool)
    died, rescale = fails(pool, job, "a:1")
    assert (died.text, died.empty) == (WHY, ("a:1",))
    assert (rescale.slots, rescale.reason) == (("a:0",), "a worker could not join")
    assert isinstance(pool.effects[0], t.Rescale)
    assert fails(pool, job, "a:1") == []  # told twice
    pool.settle(job)
    pool.step(t.ReleaseReported, job=job, attempt=1, slots=("a:1",))
    (view,) = pool.core.view(pool.now).jobs
    assert (view.min_slots, view.max_slots, view.size.workers) == (1, 1, 1)
    assert not any(isinstance(data, t.RescaleRequested) for data in asks(pool))
    assert not any(isinstance(data, t.RescaleRequested) for data in pool.plan({job: 2}))
    assert WHY in pool.core.explain(job, pool.now)
    assert pool.core.jobs(job=job)[0].stays == WHY


def test_resize_lets_it_try_again_with_the_same_range_too() -> None:
    pool = Harness(host("a", 2))
    job = grown(pool)
    fails(pool, job, "a:1")
    pool.settle(job)
    pool.step(t.ReleaseReported, job=job, attempt=1, slots=("a:1",))
    (data,) = pool.step(t.Resize, job=job, min_slots=1, max_slots=4)
    assert isinstance(data, t.JobResized)
    assert pool.core.wants_plan
    assert any(isinstance(data, t.RescaleRequested) for data in asks(pool))
    assert pool.step(t.Resize, job=job, min_slots=1, max_slots=4) == []


def test_so_does_the_next_attempt() -> None:
    pool = Harness(host("a", 2))
    job = grown(pool)
    fails(pool, job, "a:1")
    pool.settle(job)
    pool.plan({})
    pool.step(t.ExitReported, job=job, attempt=1, outcome="preempted")
    assert pool.core.view(pool.now).jobs[0].max_slots == 4
    pool.plan({job: 2})
    assert pool.job(job).slots == ("a:0", "a:1")


def test_all_slots_of_a_command_come_back_at_once_and_those_of_a_later_one_do_not() -> None:
    pool = Harness(host("a", 4))
    job = grown(pool, to=3)
    died, rescale = fails(pool, job, "a:1", "a:2")
    assert (died.workers, rescale.slots) == (1, ("a:0",))
    pool.settle(job)
    pool.step(t.ReleaseReported, job=job, attempt=1, slots=("a:1", "a:2"))
    pool.step(t.Resize, job=job, min_slots=1, max_slots=4)
    pool.plan({job: 3})
    late = fails(pool, job, "a:1", count=2)  # of generation 2
    assert not any(isinstance(data, t.RescaleRequested) for data in late)
    assert pool.job(job).slots == ("a:0", "a:1", "a:2")


def test_it_may_shrink_and_others_see_no_word_of_its_owner() -> None:
    pool = Harness(host("a", 3))
    job = pool.running(2, 1, 3)
    pool.plan({job: 3})
    fails(pool, job, "a:2")
    pool.settle(job)
    assert any(isinstance(data, t.RescaleRequested) for data in pool.plan({job: 1}))
    assert "ValueError" not in pool.core.explain(job, pool.now, whole=False)


def test_it_stands_in_the_view_and_in_the_story() -> None:
    pool = Harness(host("a", 2))
    job = grown(pool)
    fails(pool, job, "a:1")
    pool.settle(job)
    model = JobModel(job)
    for event in pool.events:
        model.fold(msgspec.json.decode(msgspec.json.encode(event), type=t.Event))
    assert WHY in model.screen(pool.now).detail
    assert (model.sizes[-1].slots, model.sizes[-1].reason) == (1, WHY)
    late = JobModel(job)
    late.describe(pool.core.jobs(job=job)[0])
    assert WHY in late.screen(pool.now).detail


def test_reports_and_events_of_before_are_read() -> None:
    told = b'{"type":"WorkerDied","job":1,"attempt":1,"count":1,"rank":1,"slot":"a:1","cause":"was killed by SIGKILL"}'
    died = msgspec.json.decode(told, type=t.WorkerDied)
    assert (died.text, died.empty) == ("rank 1 was killed by SIGKILL", ())
    assert b"empty" not in msgspec.json.encode(died)
