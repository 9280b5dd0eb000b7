"""The textbook cases of FIFO."""

from __future__ import annotations

from jupyter_elastic.scheduler.policies.fifo import Fifo
from jupyter_elastic.types import Size
from tests.unit.scheduler.policies.pool import ask, job, view


def test_starts_in_order_until_one_does_not_fit():
    assert ask(Fifo, view(4, job(1, 2), job(2, 1), job(3, 2), job(4, 1))) == {1: 2, 2: 1}


def test_first_fit_lets_a_later_job_pass():
    assert ask(Fifo, view(4, job(1, 2), job(2, 1), job(3, 2), job(4, 1)), backfill="first_fit") == {1: 2, 2: 1, 4: 1}


def test_what_runs_is_left_alone_even_at_an_elastic_size():
    assert ask(Fifo, view(4, job(1, 1, 4, on=3), job(2, 2))) == {1: 3}


def test_elastic_jobs_start_on_their_minimum_or_on_their_maximum():
    assert ask(Fifo, view(8, job(1, 1, 4))) == {1: 1}
    assert ask(Fifo, view(8, job(1, 1, 4)), size="max") == {1: 4}


def test_priority_goes_first_and_ties_go_by_number():
    assert ask(Fifo, view(2, job(1, 2), job(2, 2, priority=5))) == {2: 2}
    assert ask(Fifo, view(2, job(2, 2, submitted_at=5.0), job(1, 2, submitted_at=5.0))) == {1: 2}


def test_a_job_larger_than_the_pool_blocks_nobody_and_is_told_so():
    plan = Fifo(Fifo.Options()).plan(view(4, job(1, 8), job(2, 2)))
    assert plan.sizes == {2: Size(2)}
    assert plan.reasons[1] == "needs 8 slots and the pool has 4"


def test_servers_count_and_are_kept():
    assert Fifo(Fifo.Options()).plan(view(4, job(1, 2, min_servers=1, max_servers=2), job(2, 2))).sizes == {
        1: Size(2, 1)
    }
    running = job(1, 2, on=2, min_servers=1, max_servers=2, size=Size(2, 2))
    assert Fifo(Fifo.Options()).plan(view(4, running)).sizes == {1: Size(2, 2)}


def test_a_stopping_job_is_left_out():
    assert ask(Fifo, view(4, job(1, 2, phase="stopping"), job(2, 4))) == {2: 4}


def easy(*jobs, capacity=4):
    return ask(Fifo, view(capacity, *jobs), backfill="easy")


def test_easy_lets_only_those_by_who_cannot_delay_the_head():
    # job 1 holds 3 of 4 slots for 1,000 s more; the head needs 4; one slot is free meanwhile
    runs = job(1, 3, on=3, estimate_s=6_000.0)
    head = job(2, 4)
    assert easy(runs, head, job(3, 1, estimate_s=900.0)) == {1: 3, 3: 1}
    assert easy(runs, head, job(3, 1, estimate_s=1_100.0)) == {1: 3}
    assert easy(runs, head, job(3, 1)) == {1: 3}, "no estimate: it might delay the head"


def test_easy_gives_what_the_head_leaves_over_to_anybody():
    runs = job(1, 3, on=3, estimate_s=6_000.0)
    assert easy(runs, job(2, 3), job(3, 1), job(4, 1)) == {1: 3, 3: 1}


def test_easy_without_any_estimate_passes_nobody():
    assert easy(job(1, 3, on=3), job(2, 4), job(3, 1, estimate_s=1.0)) == {1: 3}


def test_easy_takes_back_from_a_backfilled_job_that_outstays_its_estimate():
    runs = job(1, 3, on=3, estimate_s=5_500.0)
    late = job(3, 1, on=1, estimate_s=100.0)
    assert easy(runs, job(2, 1), late) == {1: 3, 2: 1}
    assert easy(runs, job(2, 4), late) == {1: 3, 3: 1}, "it does not help the head: it goes on"
    stays = job(3, 1, on=1, estimate_s=100.0, preemptible=False)
    assert easy(runs, job(2, 1), stays) == {1: 3, 3: 1}


def test_who_waits_is_told_no_count_that_another_sentence_contradicts():
    plan = Fifo(Fifo.Options()).plan(view(8, job(1, 7, on=7), job(2, 4), job(3, 1)))
    assert plan.reasons[2] == "needs 4 slots and too few are free"
