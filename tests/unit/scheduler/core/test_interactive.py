"""Interactive jobs: elastic jobs shrink for them at once, nothing else is touched, and what was given comes back."""

from __future__ import annotations

import pytest

from jupyter_elastic.scheduler.core import Caps
from jupyter_elastic.types import (
    AgentReported,
    ExitReported,
    JobEnded,
    JobStarted,
    ReleaseReported,
    RescaleRequested,
    Resize,
    Size,
    StopRequested,
    Submit,
    Tick,
)
from jupyter_elastic.types.errors import BadRequest
from tests.support.harness import Harness, host, job_spec


def submit(pool: Harness, least: int = 1, most: int = 1, *, by: str = "bob", **changes) -> list:
    return pool.step(Submit, by=by, spec=job_spec(least, most, interactive=True, **changes))


def release(pool: Harness, job: int) -> list:
    """The job gives back what it is to give back."""
    found = pool.job(job)
    return pool.step(ReleaseReported, job=job, attempt=found.attempt, slots=found.draining, generation=found.generation)


def end(pool: Harness, job: int) -> list:
    return pool.step(ExitReported, job=job, attempt=pool.job(job).attempt, outcome="completed")


def rigid_pool() -> Harness:
    """Job 1 runs on 3 of 4 slots and can't regroup, job 2 on 1 and is elastic, at its least."""
    pool = Harness(host("a", 4))
    first = pool.submit(1, 4)
    pool.plan({first: 3})
    pool.settle(first, elastic=False)
    pool.plan({first: 3, pool.submit(1, 4): 1})
    pool.settle(2)
    return pool


def test_an_elastic_job_shrinks_at_once_and_the_slot_it_gives_back_is_leased_in_the_same_step() -> None:
    pool = Harness(host("a", 4))
    batch = pool.running(4)
    submitted, shrunk = submit(pool)
    assert (shrunk.job, shrunk.slots, shrunk.yielded) == (batch, ("a:0", "a:1", "a:2"), 1)
    assert shrunk.reason == f"makes room for interactive job {submitted.job} of bob"
    pool.settle(batch)
    released, started = release(pool, batch)
    assert (type(started), started.job, started.slots) == (JobStarted, submitted.job, released.slots)
    assert [event.by for event in pool.events[-2:]] == ["ann", "daemon"]


def test_what_is_free_is_leased_without_asking_the_policy_and_nobody_shrinks() -> None:
    pool = Harness(host("a", 4), lease_s=30.0)
    pool.running(3)
    submitted, started = submit(pool)
    assert isinstance(started, JobStarted)
    assert (started.job, started.slots, started.lease_s) == (submitted.job, ("a:3",), 30.0)


def test_alone_it_takes_what_is_idle_and_beside_a_queue_its_least() -> None:
    pool = Harness(host("a", 6))
    pool.running(1)
    assert len(submit(pool, 1, 4)[1].slots) == 4
    pool.submit(2, 2)
    pool.step(AgentReported, by="ann", connected=True)
    assert len(submit(pool, 1, 4)[1].slots) == 1


def test_a_job_that_cannot_regroup_keeps_all_and_the_first_slot_that_comes_free_is_the_waiting_ones() -> None:
    pool = rigid_pool()
    other, queued = 2, pool.submit(1, 1)
    (submitted,) = submit(pool)
    assert pool.core.view(pool.now).capacity == 4
    assert "what runs can't make room" in pool.core.explain(submitted.job, pool.now)
    _, _, started = end(pool, other)
    assert (started.job, started.slots) == (submitted.job, ("a:3",))
    assert pool.job(queued).phase == "queued"
    assert f"Interactive job {submitted.job} of bob holds 1 slot." in pool.core.explain(queued, pool.now)


def test_nobody_is_paused_for_it() -> None:
    pool = rigid_pool()
    assert [type(data).__name__ for data in submit(pool)] == ["JobSubmitted"]
    assert pool.job(1).size == Size(3)


def test_its_owners_jobs_shrink_first_then_who_has_most_beyond_the_least() -> None:
    pool = Harness(host("a", 9))
    pool.running(4, by="ann")
    pool.running(3, by="carl")
    pool.running(2, by="bob")
    shrinks = [data for data in submit(pool, 3, 3) if isinstance(data, RescaleRequested)]
    assert {data.job: len(data.slots) for data in shrinks} == {1: 2, 3: 1} or {
        data.job: len(data.slots) for data in shrinks
    } == {1: 3, 2: 2, 3: 1}


def test_allowed_sizes_are_kept() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(4, sizes=(1, 2, 4))
    assert [len(data.slots) for data in submit(pool) if isinstance(data, RescaleRequested)] == [2]
    assert pool.job(job).size == Size(2)


def test_a_guaranteed_quota_is_nobody_elses_room() -> None:
    pool = Harness(host("a", 4))
    pool.core.share({}, {"ann": 3}, Caps())
    pool.running(4)
    assert len(submit(pool)) == 2, "what is above the quota is lent"
    (submitted,) = submit(pool, by="carl")
    assert "within a guaranteed quota" in pool.core.explain(submitted.job, pool.now)
    assert len(submit(pool, by="ann")) == 2, "but its owner's own"


def test_a_limit_of_slots_holds_and_the_owners_own_job_makes_room_below_it() -> None:
    pool = Harness(host("a", 8))
    pool.core.share({}, {}, Caps({"bob": 3}))
    batch = pool.running(3, by="bob")
    shrunk, started = submit(pool)[1:]
    assert (shrunk.job, len(shrunk.slots)) == (batch, 2)
    assert isinstance(started, JobStarted), "other slots are free"
    pool.core.share({}, {}, Caps({"carl": 1}))
    pool.running(1, 1, 1, by="carl")
    assert len(submit(pool, by="carl")) == 1, "it can't shrink, so it waits"


def test_the_policy_is_shown_neither_the_waiting_one_nor_its_slots_and_then_one_that_it_can_not_pause() -> None:
    pool = Harness(host("a", 4))
    batch, queued = pool.running(4), pool.submit(1, 1)
    (submitted, _) = submit(pool)
    view = pool.core.view(pool.now)
    assert (view.capacity, [job.job for job in view.jobs]) == (3, [batch, queued])
    pool.plan({batch: 2, queued: 1})
    assert isinstance(release(pool, batch)[-1], JobStarted)
    pool.plan({batch: 2, submitted.job: 1, queued: 1})
    view = pool.core.view(pool.now)
    assert [job.preemptible for job in view.jobs] == [True, True, False]
    (rejected,) = pool.plan({batch: 2, queued: 1})
    assert f"job {submitted.job} is not preemptible" in rejected.reason


def test_a_plan_that_was_made_before_does_not_get_its_slots() -> None:
    pool = Harness(host("a", 4))
    batch, queued = pool.running(4), pool.submit(1, 1)
    submit(pool)
    pool.plan({batch: 3, queued: 1})  # with the pool as it was before
    _, started = release(pool, batch)
    assert started.job != queued


def test_what_was_given_comes_back_when_nobody_waits() -> None:
    pool = Harness(host("a", 4))
    batch = pool.running(4)
    submit(pool)
    pool.settle(batch)
    release(pool, batch)
    waiting = pool.submit(1, 1)
    end(pool, 2)
    assert pool.job(batch).size == Size(3), "somebody waits: the policy decides"
    pool.plan({batch: 3, waiting: 1})
    grown = end(pool, waiting)[-1]
    assert (grown.job, len(grown.slots), grown.yielded) == (batch, 4, 0)
    assert "it gave up for interactive jobs" in grown.reason
    assert not pool.core.state.yielded


def test_a_policy_that_rescales_it_meanwhile_has_the_last_word() -> None:
    pool = Harness(host("a", 4))
    batch = pool.running(4)
    submit(pool)
    pool.settle(batch)
    release(pool, batch)
    pool.plan({batch: 2, 2: 1})
    pool.settle(batch)
    release(pool, batch)
    assert not any(isinstance(data, RescaleRequested) for data in end(pool, 2))


def test_one_whose_agent_is_away_keeps_nothing_from_others() -> None:
    pool = Harness(host("a", 4))
    pool.running(4)
    pool.step(AgentReported, by="bob", connected=True)
    pool.step(AgentReported, by="bob", connected=False)
    assert len(submit(pool)) == 1
    assert pool.core.view(pool.now).capacity == 4
    assert len(pool.step(AgentReported, by="bob", connected=True)) == 2, "it makes room when it is back"


def test_its_time_ends_with_words_that_say_so() -> None:
    pool = Harness(host("a", 4))
    (submitted, _) = submit(pool, max_time_s=60.0)
    pool.settle(submitted.job)
    pool.now += 60
    (stop,) = pool.step(Tick)
    assert isinstance(stop, StopRequested)
    assert "60 s, which is all that it had as an interactive job" in stop.reason
    assert "without --interactive" in stop.reason
    ended = pool.step(ExitReported, job=submitted.job, attempt=1, outcome="cancelled")[-1]
    assert isinstance(ended, JobEnded)
    assert (ended.outcome, ended.reason) == ("failed", stop.reason)


def test_its_least_is_not_raised_later() -> None:
    pool = Harness(host("a", 4))
    (submitted, _) = submit(pool)
    with pytest.raises(BadRequest, match="starts with the least that it was submitted with, 1 slot"):
        pool.step(Resize, job=submitted.job, min_slots=2, max_slots=4)
    assert pool.step(Resize, job=submitted.job, max_slots=4)


def test_what_those_read_who_wait_and_those_who_shrank() -> None:
    pool = Harness(host("a", 4))
    batch, queued = pool.running(4), pool.submit(1, 1)
    (submitted, _) = submit(pool, max_time_s=600.0)
    assert "running jobs are making room" in pool.core.explain(submitted.job, pool.now)
    assert "1 slot of what is free or draining" in pool.core.explain(queued, pool.now)
    assert f"makes room for interactive job {submitted.job} of bob" in pool.core.explain(batch, pool.now)
    release(pool, batch)
    assert f"job {submitted.job} of bob holds 1 slot for 10 min at most" in pool.core.explain(queued, pool.now)
    assert "(--interactive)" in pool.core.explain(submitted.job, pool.now)
