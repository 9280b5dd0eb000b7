"""Dynamic: growth into what stays free by what is reported, back where it brought nothing, and room for who waits."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_elastic.scheduler.policies.dynamic import Dynamic
from jupyter_elastic.scheduler.sim.simulation import Costs, simulate
from jupyter_elastic.scheduler.sim.workload import SpeedCurve, TraceJob
from jupyter_elastic.types import JobView, Profile, Size, Speed
from tests.unit.scheduler.policies.pool import NOW, ask, job, view

FREE = {"free_since": NOW - 1_000.0}
SEEDS = 200 if "JUPYTER_ELASTIC_TEST_EVERYTHING" in os.environ else 4


def reports(speeds: dict[int, float], *, age: float = 1.0, period: float | None = 5.0, servers: int = 0) -> Profile:
    """A job that reported `age` seconds ago, and does so every `period` seconds."""
    points = tuple(Speed(workers=n, servers=servers, samples_per_s=v) for n, v in speeds.items())
    return Profile(
        speeds=points, remaining=1e6, done=1e3, rescale_cost_s=2.0, reported_at=NOW - age, report_period_s=period
    )


def test_who_reports_doubles_into_what_stays_free():
    running = job(1, 1, 8, on=2, profile=reports({2: 1.0}))
    assert ask(Dynamic, view(8, running, memo=FREE)) == {1: 4}
    assert ask(Dynamic, view(8, running)) == {1: 2}, "free since just now"
    assert ask(Dynamic, view(8, running, memo={"free_since": NOW - 10.0})) == {1: 2}, "not yet ten rescales long"
    assert ask(Dynamic, view(8, replace(running, changed_at=NOW - 5.0), memo=FREE)) == {1: 2}, "it has not rested"


def test_the_memo_says_since_when_slots_are_free():
    running = job(1, 1, 8, on=2, profile=reports({2: 1.0}))
    policy = Dynamic(Dynamic.Options())
    assert policy.plan(view(8, running)).memo == {"free_since": NOW}
    assert policy.plan(view(8, running, memo={"free_since": NOW + 9.0})).memo == {"free_since": NOW}
    assert policy.plan(view(2, running, memo=FREE)).memo is None
    assert policy.plan(view(8, running, job(2, 7), memo=FREE)).memo is None


@pytest.mark.parametrize(
    "silent",
    [
        Profile(),
        reports({2: 1.0}, age=16.0),  # three of its periods are missing
        reports({2: 1.0}, period=None),
        reports({1: 1.0}),  # not of the size it has
    ],
)
def test_who_does_not_report_does_not_grow(silent):
    assert ask(Dynamic, view(8, job(1, 1, 8, on=2, profile=silent), memo=FREE)) == {1: 2}


def test_a_late_report_is_said():
    stale = job(1, 1, 8, on=2, profile=reports({2: 1.0}, age=16.0))
    said = Dynamic(Dynamic.Options()).plan(view(8, stale, memo=FREE)).reasons[1]
    assert said == "3 of its reports are missing (one in 5 s): it does not grow"


def test_nobody_grows_at_its_end_or_while_somebody_waits():
    running = job(1, 1, 8, on=2, profile=reports({2: 1.0}))
    assert ask(Dynamic, view(8, job(1, 1, 8, on=2, profile=replace(running.profile, remaining=3.0)), memo=FREE)) == {
        1: 2
    }
    assert ask(Dynamic, view(8, running, job(2, 7, queued_at=NOW), memo=FREE)) == {1: 2}


def test_what_brought_nothing_is_taken_back_and_not_tried_again_soon():
    flat = reports({2: 1.0, 4: 1.02})
    assert ask(Dynamic, view(8, job(1, 1, 8, on=4, profile=flat), memo=FREE)) == {1: 2}
    back = job(1, 1, 4, on=2, profile=flat, changed_at=NOW - 300.0)
    assert ask(Dynamic, view(8, back, memo=FREE)) == {1: 3}, "a size between was not measured"
    back = replace(back, profile=reports({2: 1.0, 3: 0.9, 4: 1.02}))
    assert ask(Dynamic, view(8, back, memo=FREE)) == {1: 2}
    assert ask(Dynamic, view(8, replace(back, changed_at=NOW - 700.0), memo=FREE))[1] > 2, "after ten minutes it may"


def test_servers_come_with_workers_and_go_first():
    running = job(1, 1, 8, on=2, min_servers=1, max_servers=3, profile=reports({2: 1.0}, servers=1))
    plan = Dynamic(Dynamic.Options()).plan(view(12, running, memo=FREE))
    assert plan.sizes[1] == Size(4, 2)
    wide = replace(running, size=Size(6, 3), profile=reports({6: 1.0}, servers=3))
    plan = Dynamic(Dynamic.Options()).plan(view(9, wide, job(2, 4, queued_at=NOW - 60.0)))
    assert plan.sizes[2] == Size(4)
    assert plan.sizes[1] == Size(3, 2), "one server for two workers"


def test_who_waits_long_enough_gets_room_from_who_has_most():
    large, small = job(1, 1, 8, on=5), job(2, 1, 8, on=3)
    waits = job(3, 2, queued_at=NOW - 31.0)
    assert ask(Dynamic, view(8, large, small, waits)) == {1: 3, 2: 3, 3: 2}
    assert ask(Dynamic, view(8, large, small, replace(waits, queued_at=NOW - 29.0))) == {1: 5, 2: 3}
    assert ask(Dynamic, view(8, large, small, job(3, 7, queued_at=NOW - 60.0))) == {1: 5, 2: 3}, "it never fits"
    silent = replace(small, profile=reports({3: 1.0}, age=60.0))
    assert ask(Dynamic, view(8, large, silent, waits)) == {1: 5, 2: 1, 3: 2}, "who is silent first"


def free_halfway(chance: random.Random) -> tuple[TraceJob, TraceJob]:
    """A training whose speed rises by at least half when its workers double, and a job that ends half-way."""
    gain = chance.uniform(1.5, 1.95)  # of the second half of the pool
    workers = chance.choice((1, 2, 4))
    part = (2 - gain) / gain  # T(w) = a/w + b, so that doubling gives just that gain
    speed = SpeedCurve(workers * (1 - part), part, 0.0)
    length = chance.uniform(400.0, 900.0)
    ours = TraceJob(name="ours", submitted=0.0, work=length * speed(workers), speed=speed,
                min_slots=workers, max_slots=2 * workers)  # fmt: skip
    theirs = TraceJob(name="theirs", submitted=0.0, work=length / 2, speed=lambda _: 1.0,
                  min_slots=workers, max_slots=workers)  # fmt: skip
    return ours, theirs


def test_half_a_pool_that_becomes_free_half_way_saves_fifteen_percent():
    """ConfigurationManager's comparison with a static size, wherever twice the workers are 1.5 times as fast."""
    costs = Costs(start=2.0, rescale=0.5, report_first=1.0, report_last=10.0)
    saved = []
    for seed in range(SEEDS):
        ours, theirs = free_halfway(random.Random(seed))
        ends = {}
        for name in ("fifo", "dynamic"):
            run = simulate((ours, theirs), name, nodes=1, slots=2 * ours.min_slots, costs=costs)
            assert not run.rejected
            ends[name] = run.timelines[0].ended or 0.0
        saved.append(1 - ends["dynamic"] / ends["fifo"])
    assert min(saved) >= 0.15, saved


def test_reports_that_go_back_after_a_rollback_harm_nothing():
    """The core takes what a job says after a rollback for no speed at all; what it knew of the size stays."""
    running: JobView = job(1, 1, 8, on=2, profile=replace(reports({2: 1.0}), done=10.0, remaining=2e6))
    later: Any = replace(running, profile=replace(running.profile, done=5.0, remaining=2.1e6))
    assert ask(Dynamic, view(8, running, memo=FREE)) == ask(Dynamic, view(8, later, memo=FREE)) == {1: 4}
