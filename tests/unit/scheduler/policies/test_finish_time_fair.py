"""Finish-time fairness: tiers by the metric's own rho, and what is remembered for it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from jupyter_elastic.scheduler.core.plan import MEMO_BYTES
from jupyter_elastic.scheduler.policies.common import Draft
from jupyter_elastic.scheduler.policies.crowd import POINTS, Crowd
from jupyter_elastic.scheduler.policies.finish_time_fair import FinishTimeFair, FinishTimes
from jupyter_elastic.scheduler.sim.schedule_metrics import JobTimeline, SimulatedRun, fluid_alone, rho
from jupyter_elastic.types import Profile
from tests.unit.scheduler.policies.pool import NOW, ask, job, linear, profile, view


def waited(number, seconds, work, least=1, **more):
    since = {"submitted_at": NOW - seconds, "queued_at": NOW - seconds}
    return job(number, least, profile=more.pop("profile", linear(work)), **since, **more)


def test_the_one_behind_its_fair_finish_goes_first():
    assert ask(FinishTimeFair, view(1, waited(1, 50_000.0, 1_000.0), waited(2, 10.0, 1_000.0))) == {1: 1}
    short = waited(3, 5_000.0, 50.0)
    assert ask(FinishTimeFair, view(1, waited(1, 50_000.0, 1_000.0), short)) == {3: 1}, "100 times beats 50 times"


def test_a_job_that_makespan_depends_on_goes_before_those_that_are_not_far_behind():
    gang, long = waited(1, 1_000.0, 4_000.0, 4), waited(9, 100.0, 10_000.0)
    assert ask(FinishTimeFair, view(4, gang, long), limit=2.0, ahead=0.0) == {9: 1}, "longer than all the work"
    assert ask(FinishTimeFair, view(4, gang, long), limit=1.2, ahead=0.0) == {1: 4}, "who is behind comes first"


def test_priorities_go_before_tiers():
    late, first = waited(1, 50_000.0, 1_000.0), waited(2, 10.0, 1_000.0, priority=5)
    assert ask(FinishTimeFair, view(1, late, first)) == {2: 1}


def test_who_has_just_started_keeps_its_place_by_what_its_start_cost():
    def pool(ago):
        new = job(
            1, on=1, changed_at=NOW - ago, submitted_at=NOW - ago, run_s=ago, attained_s=ago,
            profile=msgspec.structs.replace(linear(1_000.0, cost=0.5), start_cost_s=30.0),
        )  # fmt: skip
        return view(1, new, waited(2, 50_000.0, 1_000.0))

    assert ask(FinishTimeFair, pool(299.0)) == {1: 1}
    assert ask(FinishTimeFair, pool(301.0)) == {2: 1}


def test_rho_is_the_metrics_own():
    """Two jobs on one slot for 100 s, one of which would be over now; then one that has the pool to itself."""
    first = job(
        1, on=1, submitted_at=NOW - 100.0, run_s=100.0, attained_s=100.0,
        profile=msgspec.structs.replace(linear(1.0), done=99.0),
    )  # fmt: skip
    where = view(1, first, waited(2, 100.0, 200.0))
    now = JobTimeline("1", 0.0, ended=100.0, alone=fluid_alone(float, 100.0, [1]))
    real = rho(SimulatedRun("", 1, [now, JobTimeline("2", 0.0, ended=400.0)]))
    assert FinishTimes(Draft(where), Crowd.of(where)).rho(np.zeros(2))[0] == pytest.approx(real[0])
    alone = view(1, waited(2, 100.0, 200.0))
    late = JobTimeline("2", 0.0, ended=400.0, alone=fluid_alone(float, 200.0, [1]))
    assert FinishTimes(Draft(alone), Crowd.of(alone)).rho(np.array([300.0])) == pytest.approx(
        rho(SimulatedRun("", 1, [late]))[0]
    )


def test_an_elastic_job_alone_takes_what_it_can_use_of_its_share():
    where = view(8, waited(1, 0.0, 800.0, profile=profile(800.0, {n: n**0.5 for n in range(1, 9)}), high=4))
    outlook = FinishTimes(Draft(where), Crowd.of(where))
    assert outlook.rho(np.array([400.0]))[0] == pytest.approx(1.0), "800 s on one, 400 s on the four that it may have"


def test_a_finished_job_of_many_samples_is_not_taken_for_a_tiny_one():
    """What is left is never below one slot-second; what was done must not be worked out from it."""
    almost = job(
        1, on=1, submitted_at=NOW - 1_000.0, run_s=1_000.0, attained_s=1_000.0, changed_at=NOW - 1_000.0,
        profile=Profile(speeds=linear(1.0).speeds, done=1_000.0, remaining=1e-6),
    )  # fmt: skip
    where = view(1, almost)
    outlook = FinishTimes(Draft(where), Crowd.of(where))
    assert outlook.total[0] == pytest.approx(1_001.0)


def test_a_silent_job_is_taken_to_need_half_of_its_time_limit():
    where = view(1, job(1, max_time_s=10_000.0), job(2, 2, max_time_s=10.0), job(3, max_time_s=10.0, estimate_s=4.0))
    assert FinishTimes(Draft(where), Crowd.of(where)).work.tolist() == [5_000.0, 10.0, 4.0]
    had = job(1, on=1, max_time_s=5_100.0)
    where = view(1, had)
    assert FinishTimes(Draft(where), Crowd.of(where)).work[0] == 50.0, "5,000 s of them are gone"
    where = view(1, job(1, max_time_s=300.0, estimate_s=1_000.0, on=1, run_s=100.0, attained_s=100.0))
    assert FinishTimes(Draft(where), Crowd.of(where)).work[0] == 200.0, "no longer than it may"


def test_a_silent_job_is_taken_to_be_as_long_as_its_kin():
    lengths = {"ann": {"digits": (100.0, 300.0)}}
    told = job(5, name="digits", estimate_s=7.0)
    reports = job(6, name="digits", profile=linear(40.0))
    limited = job(7, name="digits", max_time_s=150.0)
    jobs = [job(1, name="digits"), job(2, 2, name="digits"), job(3, name="other"), job(4, name="digits", owner="bob")]
    where = view(1, *jobs, told, reports, limited, lengths=lengths)
    assert FinishTimes(Draft(where), Crowd.of(where)).work.tolist() == [200.0, 400.0, 60.0, 60.0, 7.0, 40.0, 75.0]
    on = {"name": "digits", "on": 1}
    jobs = [job(n, run_s=had, attained_s=had, **on) for n, had in ((1, 50.0), (2, 120.0), (3, 400.0))]
    where = view(3, *jobs, lengths=lengths)
    assert FinishTimes(Draft(where), Crowd.of(where)).work.tolist() == [150.0, 180.0, 400.0]


def test_the_crowd_is_remembered_as_long_as_a_job_is_there():
    def seen(now, memo, *births):
        return Crowd.of(
            view(1, *(job(n, submitted_at=at) for n, at in enumerate(births, 1)), now=now, memo=memo)
        )  # fmt: skip

    crowd = seen(100.0, None, 100.0)
    crowd = seen(200.0, crowd.memo(), 100.0, 200.0)
    assert crowd.area - crowd.areas[0] == 100.0
    crowd = seen(300.0, crowd.memo(), 200.0)  # the first has ended
    assert crowd.area - np.interp(200.0, crowd.times, crowd.areas) == 200.0
    assert crowd.memo() == seen(400.0, crowd.memo(), 200.0).memo(), "nothing new, nothing to journal"
    assert seen(400.0, crowd.memo(), 200.0).area == crowd.area + 100.0


def test_the_memo_stays_small_and_near_the_truth_in_a_long_queue():
    memo, truth, areas, births = None, 0.0, {}, []
    for at in range(400):
        now = 10.0 * at
        truth += 10.0 * len(births)
        births.append(now)
        areas[now] = truth
        if at % 3 == 2:
            births.pop(at % min(7, len(births)))
        crowd = Crowd.of(view(1, *(job(n, submitted_at=b) for n, b in enumerate(births, 1)), now=now, memo=memo))
        memo = msgspec.json.decode(msgspec.json.encode(crowd.memo()))
        assert len(crowd.times) <= POINTS
    assert len(msgspec.json.encode(memo)) < MEMO_BYTES / 20
    past = crowd.area - np.interp(births, [*crowd.times, crowd.now], [*crowd.areas, crowd.area])
    for found, birth in zip(past[:-10], births[:-10], strict=True):
        assert found == pytest.approx(truth - areas[birth], rel=0.05)
