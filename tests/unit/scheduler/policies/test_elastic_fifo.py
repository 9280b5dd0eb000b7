"""Elastic FIFO: minimums in order, the rest in turn, and the traps of the originals."""

from __future__ import annotations

from jupyter_elastic.scheduler.policies.elastic_fifo import ElasticFifo
from jupyter_elastic.types import JobView, Profile, Size, Speed
from tests.unit.scheduler.policies.pool import NOW, ask, job, linear, profile, view


def plan(capacity, *jobs, **options):
    return ask(ElasticFifo, view(capacity, *jobs), **options)


def test_minimums_in_order_then_one_slot_each_in_turn():
    assert plan(7, job(1, 1, 4), job(2, 1, 4)) == {1: 4, 2: 3}


def test_a_newcomer_shrinks_running_jobs_towards_their_minimum():
    assert plan(4, job(1, 1, 4, on=4), job(2, 1, 4)) == {1: 2, 2: 2}
    assert plan(4, job(1, 1, 4, on=4), job(2, 2), job(3, 1)) == {1: 1, 2: 2, 3: 1}


def test_a_completion_lets_the_oldest_grow_first():
    assert plan(5, job(1, 1, 4, on=2), job(2, 1, 4, on=2)) == {1: 3, 2: 2}


def test_a_full_pool_of_gangs_gives_the_next_gang_nothing():
    """Voda hands single slots to a job that got none, and panics when its minimum is above one."""
    assert plan(4, job(1, 2, 2, on=2), job(2, 2, 4, on=2), job(3, 2, 4)) == {1: 2, 2: 2}
    assert plan(5, job(1, 2, 2, on=2), job(2, 2, 2, on=2), job(3, 2, 4)) == {1: 2, 2: 2}


def test_a_blocked_head_blocks_later_waiting_jobs_unless_told_otherwise():
    assert plan(4, job(1, 2, on=2), job(2, 3), job(3, 1)) == {1: 2}
    assert plan(4, job(1, 2, on=2), job(2, 3), job(3, 1), strict=False) == {1: 2, 3: 1}


def test_growth_stops_where_a_slot_adds_too_little():
    flat = profile(1e6, {1: 1.0, 2: 1.9, 3: 1.95, 4: 1.96})
    assert plan(4, job(1, 1, 4, profile=flat)) == {1: 2}
    assert plan(4, job(1, 1, 4, profile=flat), theta=0.0) == {1: 4}


def test_a_size_that_was_slow_for_a_moment_is_tried_again_and_left_when_it_is_slow():
    def at(workers: int, *, brief: bool) -> JobView:
        points = (
            Speed(workers=1, samples_per_s=482.0, brief=brief),
            Speed(workers=2, samples_per_s=424.0, brief=brief),
        )
        known = Profile(speeds=points, fit=(1e-4, 2e-3, 0.0), remaining=1e6, done=0.0, rescale_cost_s=0.2)
        return job(1, 1, 2, on=workers, profile=known)

    assert plan(2, at(1, brief=True)) == {1: 2}
    assert plan(2, at(2, brief=True)) == {1: 2}  # nobody waits for the slot
    assert plan(2, at(1, brief=False)) == {1: 1}


def test_allowed_sizes_are_steps():
    assert plan(7, job(1, 1, 8, sizes=(1, 2, 4, 8)), job(2, 1, 8, sizes=(1, 2, 4, 8))) == {1: 4, 2: 2}


def test_servers_take_slots_too():
    found = ElasticFifo(ElasticFifo.Options()).plan(view(5, job(1, 1, 4, min_servers=1, max_servers=1))).sizes
    assert found == {1: Size(4, 1)}


def test_the_guard_counts_in_the_jobs_own_rescale_cost():
    cheap, dear = linear(1e5, cost=0.2), linear(1e5, cost=60.0)
    just = {"on": 1, "changed_at": NOW - 30.0}
    assert plan(4, job(1, 1, 4, profile=cheap, **just)) == {1: 4}
    assert plan(4, job(1, 1, 4, profile=dear, **just)) == {1: 1}, "it changed half a rescale cost ago"
    assert plan(4, job(1, 1, 4, on=1, profile=linear(3.0, cost=2.0))) == {1: 1}, "it has 3 s to go"


def test_nobody_shrinks_for_somebody_elses_growth():
    assert plan(8, job(1, 1, 8, on=1), job(2, 1, 8, on=7)) == {1: 1, 2: 7}


def test_says_for_whom_a_job_shrinks():
    told = ElasticFifo(ElasticFifo.Options()).plan(view(4, job(1, 1, 4, on=4), job(7, 2, owner="bob"))).reasons
    assert told[1] == "makes room for job 7 of bob"
    assert told[7] == "slots are free for it"


def test_who_may_not_be_preempted_keeps_its_minimum_against_priority():
    fixed = job(1, 2, 4, on=4, preemptible=False)
    assert plan(4, fixed, job(2, 4, priority=9)) == {1: 4}
    assert plan(4, fixed, job(2, 2, priority=9)) == {1: 2, 2: 2}
    assert plan(4, job(1, 2, 4, on=4), job(2, 4, priority=9)) == {2: 4}
