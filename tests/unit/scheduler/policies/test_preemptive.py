"""LAS, SRTF and round robin: who overtakes whom."""

from __future__ import annotations

from jupyter_elastic.scheduler.policies.las import Las
from jupyter_elastic.scheduler.policies.round_robin import RoundRobin
from jupyter_elastic.scheduler.policies.srtf import ElasticSrtf, Srtf
from jupyter_elastic.types import HostView, View
from tests.unit.scheduler.policies.pool import NOW, ask, job, linear, profile, view, workers


def test_las_preempts_a_job_of_the_second_queue_for_one_of_the_first():
    served = job(1, 2, on=2, attained_s=4_000.0)
    assert ask(Las, view(2, served, job(2, 2))) == {2: 2}
    assert ask(Las, view(2, job(1, 2, on=2, attained_s=3_000.0), job(2, 2))) == {1: 2}, "both in the first: by arrival"
    assert ask(Las, view(2, served, job(2, 2)), threshold_s=5_000.0) == {1: 2}


def test_las_skips_what_does_not_fit():
    assert ask(Las, view(3, job(1, 2), job(2, 2), job(3, 1))) == {1: 2, 3: 1}


def test_las_promotes_who_waited_long_and_remembers_it():
    starved = job(1, 1, attained_s=4_000.0, run_s=4_000.0, queued_at=NOW - 8 * 4_000.0)
    newer = job(2, 1, on=1, attained_s=10.0, run_s=10.0)
    plan = Las(Las.Options()).plan(view(1, starved, newer))
    assert workers(plan) == {1: 1}
    assert plan.memo == {"forgiven": {"1": 4_000.0}}
    runs = job(1, 1, on=1, attained_s=4_100.0, run_s=4_100.0)
    waits = job(2, 1, attained_s=10.0, run_s=10.0)
    assert ask(Las, view(1, runs, waits, memo=plan.memo)) == {1: 1}, "forgiven: it stays in the first queue"
    assert ask(Las, view(1, runs, waits)) == {2: 1}
    assert ask(Las, view(1, starved, newer), promote=0.0) == {2: 1}


def test_srtf_seats_the_shortest_and_preempts_only_for_a_clear_lead():
    long, short = linear(10_000.0), linear(10.0)
    assert ask(Srtf, view(2, job(1, 1, profile=long), job(2, 1, profile=short), job(3, 1, profile=short))) == {
        2: 1,
        3: 1,
    }
    running = job(1, 1, on=1, profile=linear(5_000.0))
    assert ask(Srtf, view(1, running, job(2, 1, profile=linear(10.0), submitted_at=NOW))) == {2: 1}
    assert ask(Srtf, view(1, running, job(2, 1, profile=linear(4_995.0), submitted_at=NOW))) == {1: 1}


def test_srtf_counts_waiting():
    waited = job(1, 1, profile=linear(1_000.0), submitted_at=NOW - 100_000.0)
    assert ask(Srtf, view(1, waited, job(2, 1, profile=linear(10.0), submitted_at=NOW))) == {1: 1}


def test_elastic_srtf_lets_the_shortest_grow_first():
    short, long = linear(1_000.0, top=4), linear(90_000.0, top=4)
    assert ask(ElasticSrtf, view(5, job(1, 1, 4, profile=long), job(2, 1, 4, profile=short))) == {1: 1, 2: 4}


def test_round_robin_gives_the_slice_to_who_waited_longest():
    over = job(1, 2, on=2, changed_at=NOW - 601.0)
    fresh = job(2, 1, on=1, changed_at=NOW - 10.0)
    assert ask(RoundRobin, view(3, over, fresh)) == {1: 2, 2: 1}, "nobody waits: it goes on"
    assert ask(RoundRobin, view(3, over, fresh, job(3, 1), job(4, 1, queued_at=NOW - 20_000.0))) == {2: 1, 3: 1, 4: 1}
    assert ask(RoundRobin, view(3, over, fresh, job(3, 1)), quantum_s=900.0) == {1: 2, 2: 1}


def test_a_quantum_is_never_less_than_ten_rescales():
    dear = job(1, 1, on=1, changed_at=NOW - 100.0, profile=profile(1e6, {1: 1.0}, cost=30.0))
    assert ask(RoundRobin, view(1, dear, job(2, 1)), quantum_s=60.0) == {1: 1}


def test_passed_over_three_times_a_gang_gets_a_reservation():
    blocker = job(1, 2, on=2, changed_at=NOW)
    gang, small = job(2, 3), job(3, 1)
    policy = RoundRobin(RoundRobin.Options())
    memo = None
    for times in (1, 2, 3):
        plan = policy.plan(view(4, blocker, gang, small, memo=memo))
        assert workers(plan) == {1: 2, 3: 1}
        memo = plan.memo
        assert memo == {"passed": {"2": times}}
    assert workers(policy.plan(view(4, blocker, gang, small, memo=memo))) == {1: 2}
    assert workers(policy.plan(view(4, gang, small, memo=memo))) == {2: 3, 3: 1}


def test_rotation_walks_the_hosts_and_waits_where_the_original_failed():
    hosts = tuple(HostView(name=name, capacity=2, free=2) for name in "abc")
    policy = RoundRobin(RoundRobin.Options(mode="placement"))
    plan = policy.plan(View(now=NOW, hosts=hosts, jobs=(job(1, 1), job(2, 2), job(3, 2), job(4, 2), job(5, 1))))
    assert workers(plan) == {1: 1, 2: 2, 3: 2}, "a has one slot left: job 4 waits, and job 5 behind it"
    assert plan.memo == {"pointer": 0}
    plan = policy.plan(View(now=NOW, hosts=hosts, jobs=(job(1, 3),), memo={"pointer": 2}))
    assert workers(plan) == {1: 3}, "larger than every host: it may span them"
