"""The core as a whole: views, lists, replay, and that a step costs what changed."""

from __future__ import annotations

from cProfile import Profile
from time import perf_counter

import msgspec
import pytest

from jupyter_elastic.scheduler.core import Core, State
from jupyter_elastic.types import (
    Cancel,
    Event,
    ExitReported,
    Plan,
    Progress,
    ProgressReported,
    Propose,
    Resize,
    Size,
    Submit,
    UsePolicy,
)
from jupyter_elastic.types.errors import NotFound
from tests.support.harness import Harness, host, job_spec


def test_the_view_shows_unfinished_jobs_in_order_and_hosts() -> None:
    pool = Harness(host("a", 4), host("b", 2))
    pool.core = core = Core(pool.core.state, weights={"ann": 2.0}, quotas={"bob": 1}, seed=7)
    first, second, third = pool.running(3), pool.submit(by="bob"), pool.submit()
    pool.step(Cancel, job=third)
    pool.plan({first: 1, second: 2})
    view = core.view(pool.now)
    assert [(job.job, job.phase, job.size.workers) for job in view.jobs] == [(1, "rescaling", 1), (2, "starting", 2)]
    assert [(one.name, one.capacity, one.free, one.draining) for one in view.hosts] == [("a", 4, 1, 2), ("b", 2, 0, 0)]
    assert (view.capacity, view.seed, view.weights, view.quotas) == (6, 7, {"ann": 2.0}, {"bob": 1})


def test_a_first_measurement_at_a_size_is_news_and_a_second_is_not() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(2)
    pool.plan({job: 2})
    wanted = []
    for samples in (1.0, 2.0, 3.0):
        seen = Progress(samples=samples, samples_per_s=50.0, total_samples=100.0)
        pool.step(ProgressReported, job=job, attempt=1, progress=seen)
        wanted.append(pool.core.wants_plan)
        pool.plan({job: 2})
    assert wanted == [False, True, False]
    profile = pool.core.view(pool.now).jobs[0].profile
    assert (profile.rate(2), profile.remaining, profile.done) == (50.0, 97.0, 3.0)
    assert profile.rate(4) == pytest.approx(100.0)


def test_lists() -> None:
    pool = Harness(host("a", 2))
    jobs = [pool.submit() for _ in range(5)]
    for job in jobs[:3]:
        pool.step(Cancel, job=job)
    assert [info.job for info in pool.core.jobs()] == jobs[3:]
    assert [info.job for info in pool.core.jobs(all=True)] == jobs
    assert [info.job for info in pool.core.jobs(all=True, limit=3)] == jobs[2:]
    assert [info.job for info in pool.core.jobs(limit=1)] == jobs[4:]
    pool.plan({jobs[3]: 1})
    assert [info.job for info in pool.core.jobs(all=True, limit=1)] == jobs[3:4], "those with slots are always there"
    assert [info.job for info in pool.core.jobs(owner="somebody")] == []
    assert [info.job for info in pool.core.jobs(job=jobs[0])] == jobs[:1]
    with pytest.raises(NotFound):
        pool.core.jobs(job=77)


def test_a_submit_costs_the_same_however_long_the_queue_is() -> None:
    core, calls = Harness(host("a", 2)).core, []
    for number in range(2_000):
        submit = Submit(at=float(number), by="ann", id=f"key {number}", spec=job_spec(1, 1))
        with Profile(builtins=True) as profile:
            core.step(submit)
        calls.append(sum(entry.callcount for entry in profile.getstats()))
    assert min(calls[1_000:]) <= min(calls[1:10])  # a look for garbage now and then adds to one


def test_a_job_is_drawn_again_only_when_an_event_has_changed_it() -> None:
    pool = Harness(host("a", 2))
    first, second = pool.submit(), pool.submit()
    before = pool.core.jobs()
    pool.plan({first: 1})
    after = pool.core.jobs()
    assert after[1] is before[1]
    assert after[0].slots != before[0].slots
    pool.step(Cancel, job=second)
    assert [info.phase for info in pool.core.jobs(all=True)] == ["starting", "cancelled"]


def test_books_are_equal_after_replay_and_after_a_snapshot() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(2)
    pool.plan({job: 1}, memo={1: 2}, reasons={job: "enough"})
    pool.step(Resize, job=job, min_slots=1, max_slots=2)
    pool.step(UsePolicy, name="las", options={"a": 1}, source="class A: ...")
    pool.step(ProgressReported, job=job, attempt=1, progress=Progress(step=1, metrics={"loss": 0.1}))
    pool.submit()
    pool.step(ExitReported, job=job, attempt=1, outcome="lost")
    replayed = Core()
    for event in pool.events:
        replayed.fold(msgspec.json.decode(msgspec.json.encode(event), type=Event))
    assert replayed.state == pool.core.state
    assert replayed.wants_plan
    snapshot = Core(msgspec.msgpack.decode(msgspec.msgpack.encode(pool.core.state), type=State))
    assert snapshot.state == pool.core.state
    assert snapshot.view(pool.now) == pool.core.view(pool.now)
    assert snapshot.next_wakeup(0.0) == pool.core.next_wakeup(0.0)
    assert [event.seq for event in pool.events] == list(range(1, len(pool.events) + 1))


def test_a_step_costs_what_changed_however_long_the_queue_is() -> None:
    def best(core: Core, first: int) -> float:
        """The fastest of many submits: the machine is shared."""
        times = []
        for number in range(first, first + 500):
            stimulus = Submit(at=1.0, by="ann", id=str(number), spec=job_spec())
            began = perf_counter()
            core.step(stimulus)
            times.append(perf_counter() - began)
        return min(times)

    core = Harness(host("a", 4)).core
    short = best(core, 0)
    for number in range(1000, 10_000):
        core.step(Submit(at=1.0, by="ann", id=str(number), spec=job_spec()))
    assert best(core, 20_000) < 5 * short + 50e-6

    core.step(Propose(at=2.0, by="daemon", id="p", policy="fifo", plan=Plan(sizes={1: Size(2)})))
    core.view(3.0)
    times = []
    for number in range(200):
        seen = ProgressReported(at=3.0, by="ann", id="r", job=1, attempt=1, progress=Progress(step=number + 1))
        began = perf_counter()
        assert core.step(seen)[0]
        times.append(perf_counter() - began)
    assert min(times) < 500e-6  # a walk over the queue would take milliseconds
