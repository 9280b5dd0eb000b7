"""Deadlines: who is admitted, and that nobody who is gets less than it needs."""

from __future__ import annotations

from jupyter_elastic.scheduler.policies.deadline import Deadline
from tests.unit.scheduler.policies.pool import NOW, ask, job, linear, view, workers


def due(number, seconds, work, high=4, **more):
    cost = more.pop("cost", 0.0)
    return job(number, 1, high, deadline_at=NOW + seconds, profile=linear(work, top=8, cost=cost), **more)


def plan(capacity, *jobs, memo=None):
    return Deadline(Deadline.Options(margin=0.0, payback=0.0)).plan(view(capacity, *jobs, memo=memo))


def test_the_least_level_that_meets_the_deadline_comes_first():
    # 300 samples at n samples/s in 100 s: three workers; the job without a deadline gets what is left
    found = plan(4, job(1, 1, 4, profile=linear(1e6)), due(2, 100.0, 300.0))
    assert workers(found) == {1: 1, 2: 3}
    assert found.memo == {"admitted": [2]}
    assert found.reasons[2] == "admitted: its deadline can be met"


def test_what_a_start_and_a_rescale_cost_is_counted():
    assert workers(plan(8, due(1, 100.0, 300.0, cost=2.0))) == {1: 4}
    assert workers(plan(3, due(1, 100.0, 300.0, cost=2.0))) == {1: 3}  # can't be met, so it runs as one without
    assert plan(3, due(1, 100.0, 300.0, cost=2.0)).memo == {"admitted": []}
    going_on = due(1, 100.0, 300.0, on=3, cost=2.0)  # no pause is to come where it is
    assert plan(3, going_on).memo == {"admitted": [1]}


def test_a_pause_that_is_going_on_is_counted():
    starting = due(1, 100.0, 295.0, on=3, cost=2.0, phase="starting", changed_at=NOW - 1.0)
    assert plan(3, starting).memo == {"admitted": [1]}
    assert plan(3, due(1, 100.0, 299.0, on=3, cost=2.0, phase="starting", changed_at=NOW - 1.0)).memo == {
        "admitted": []
    }


def test_an_admitted_job_that_is_being_preempted_stays_admitted():
    stops = due(1, 100.0, 50.0, phase="stopping")
    assert plan(4, stops, due(2, 100.0, 300.0), memo={"admitted": [1]}).memo == {"admitted": [1, 2]}
    assert plan(4, stops).memo == {"admitted": []}


def test_the_order_of_reservations_is_kept_so_that_what_could_be_met_still_can():
    # by earliest deadline the second would take two slots at once, and the first could not be met any more
    first, second = due(1, 300.0, 600.0, high=2), due(2, 250.0, 100.0, high=2)
    found = plan(3, first, second, memo={"admitted": [1, 2]})
    assert found.memo == {"admitted": [1, 2]}
    assert found.sizes[1].workers == 2
    assert plan(2, first, second, memo={"admitted": [1]}).memo == {"admitted": [1]}


def test_a_deadline_that_is_past_keeps_nobody_out():
    past = due(1, -5.0, 1e4, on=1, high=1)
    late, early = due(2, 400.0, 800.0, high=2), due(3, 50.0, 40.0, high=1)
    found = plan(3, past, late, early, memo={"admitted": [1, 2]})
    assert set(found.memo["admitted"]) == {1, 2, 3}


def test_an_admitted_job_near_its_end_is_let_finish():
    ending = due(1, 1.0, 0.5, on=1, cost=30.0)
    found = plan(1, ending, due(2, 1000.0, 10.0), memo={"admitted": [1]})
    assert workers(found) == {1: 1}


def test_one_that_came_late_goes_on_as_fast_as_it_can_and_breaks_no_other():
    late, fine = due(1, 10.0, 400.0, on=1), due(2, 100.0, 200.0, on=2)
    found = plan(4, late, fine, memo={"admitted": [1, 2]})
    assert workers(found) == {1: 2, 2: 2}
    assert found.memo == {"admitted": [1, 2]}


def test_a_deadline_that_would_break_an_admitted_one_is_refused():
    first = due(1, 100.0, 300.0)
    found = plan(4, first, due(2, 100.0, 200.0))
    assert found.memo == {"admitted": [1]}
    assert found.sizes[1].workers >= 3


def test_a_later_deadline_waits_for_the_slots_of_an_earlier_one():
    # both fit one after the other: 400 samples on 4 workers until 100 s, then 400 until 200 s
    found = plan(4, due(1, 100.0, 400.0), due(2, 200.0, 400.0))
    assert found.memo == {"admitted": [1, 2]}
    assert workers(found) == {1: 4}


def test_an_earlier_deadline_is_admitted_if_the_later_one_still_holds():
    late = due(1, 400.0, 400.0)
    found = plan(4, late, due(2, 50.0, 200.0))
    assert found.memo == {"admitted": [2, 1]}
    assert found.sizes[2].workers == 4


def test_an_admitted_job_stays_admitted_when_more_come():
    runs = due(1, 100.0, 300.0, on=3)
    rivals = [due(number, 90.0, 350.0) for number in range(2, 10)]
    found = plan(4, runs, *rivals, memo={"admitted": [1]})
    assert found.memo == {"admitted": [1]}
    assert found.sizes[1].workers >= 3


def test_a_job_whose_length_nobody_knows_is_no_deadline_job():
    found = plan(4, job(1, 1, 4, deadline_at=NOW + 100.0))
    assert found.memo == {"admitted": []}
    assert workers(found) == {1: 4}


def test_the_owners_estimate_will_do():
    assert plan(4, job(1, 1, 4, deadline_at=NOW + 100.0, estimate_s=99.0)).memo == {"admitted": [1]}
    assert plan(4, job(1, 1, 4, deadline_at=NOW + 100.0, estimate_s=999.0)).memo == {"admitted": []}


def test_without_deadlines_it_shares_out_by_marginal_return():
    assert ask(Deadline, view(3, job(1, 1, 4, profile=linear(400.0)), job(2, 1, 4, profile=linear(1e3)))) == {
        1: 1,
        2: 2,
    }
