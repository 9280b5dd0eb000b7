"""Optimus, AFS, goodput and balanced (finish-time fairness in `test_finish_time_fair.py`): where the next slot goes."""

from __future__ import annotations

import random

import pytest

from jupyter_elastic.scheduler.policies.afs import Afs, Maxima
from jupyter_elastic.scheduler.policies.balanced import Balanced
from jupyter_elastic.scheduler.policies.finish_time_fair import FinishTimeFair
from jupyter_elastic.scheduler.policies.goodput import Goodput
from jupyter_elastic.scheduler.policies.optimus import Optimus
from tests.unit.scheduler.policies.pool import NOW, ask, job, linear, profile, view

FLAT = {1: 1.0, 2: 1.1, 3: 1.15, 4: 1.2}


def test_optimus_gives_where_most_time_is_saved():
    # 1,000 s of work: 1 -> 2 saves 500 s, 2 -> 3 saves 167 s; 400 s of work: 1 -> 2 saves 200 s, 2 -> 3 saves 67 s
    large, small = linear(1_000.0), linear(400.0)
    assert ask(Optimus, view(3, job(1, 1, 4, profile=small), job(2, 1, 4, profile=large))) == {1: 1, 2: 2}
    assert ask(Optimus, view(4, job(1, 1, 4, profile=small), job(2, 1, 4, profile=large))) == {1: 2, 2: 2}
    assert ask(Optimus, view(5, job(1, 1, 4, profile=small), job(2, 1, 4, profile=large))) == {1: 2, 2: 3}


def test_optimus_stops_where_nobody_gains():
    slower = profile(1e6, {1: 1.0, 2: 0.9, 3: 0.8, 4: 0.7})
    assert ask(Optimus, view(4, job(1, 1, 4, profile=slower))) == {1: 1}


def test_a_dip_on_the_way_up_is_seen_across():
    dip = profile(1e6, {1: 1.0, 2: 0.9, 3: 2.5, 4: 2.4})
    assert ask(Optimus, view(4, job(1, 1, 4, profile=dip))) == {1: 3}


def test_afs_prefers_the_short_job_unless_the_long_one_uses_the_slot_much_better():
    short, long = linear(100.0), linear(50_000.0)
    now = {"submitted_at": NOW}
    assert ask(Afs, view(4, job(1, 1, 4, profile=long, **now), job(2, 1, 4, profile=short, **now))) == {1: 1, 2: 3}
    flat = profile(100.0, FLAT)
    # short and flat: (1.1 - 1) / 1 = 0.1; long and linear: (2 - 1) / 2 = 0.5, then (3 - 2) / 3 = 0.33
    assert ask(Afs, view(4, job(1, 1, 4, profile=long, **now), job(2, 1, 4, profile=flat, **now))) == {1: 3, 2: 1}


def test_the_tree_of_maxima_finds_the_next_one_above():
    chance = random.Random(1)
    row = [0.0] * 37
    tree = Maxima(len(row))
    for _ in range(500):
        at = chance.randrange(len(row))
        row[at] = chance.choice((0.0, chance.random()))
        tree.put(at, row[at])
        start, bound = chance.randrange(len(row) + 1), chance.random()
        expected = next((i for i in range(start, len(row)) if row[i] > bound), -1)
        assert tree.next_above(start, bound) == expected


def test_goodput_discounts_a_batch_that_the_noise_does_not_carry():
    noisy = profile(1e6, {n: float(n) for n in range(1, 5)}, noise=1e9)
    clean = profile(1e6, {n: float(n) for n in range(1, 5)}, noise=0.0)
    jobs = (job(1, 1, 4, profile=clean), job(2, 1, 4, profile=noisy))
    assert ask(Goodput, view(5, *jobs)) == {1: 3, 2: 2}, "a fixed batch: throughput alone"
    assert ask(Goodput, view(5, *jobs), batch=64.0) == {1: 1, 2: 4}


def test_balanced_lets_the_short_one_have_the_slots_while_both_use_them_well():
    short, long = linear(100.0), linear(50_000.0)
    now = {"submitted_at": NOW}
    assert ask(Balanced, view(4, job(1, 1, 4, profile=long, **now), job(2, 1, 4, profile=short, **now))) == {1: 1, 2: 3}


def test_balanced_wastes_nothing_while_somebody_uses_it_well_and_then_fills_up():
    short, long = profile(100.0, FLAT), linear(50_000.0, top=2)
    now = {"submitted_at": NOW}
    assert ask(Balanced, view(4, job(1, 1, 2, profile=long, **now), job(2, 1, 4, profile=short, **now))) == {1: 2, 2: 2}


@pytest.mark.parametrize("policy", [Optimus, Afs, Goodput, FinishTimeFair, Balanced])
def test_a_job_that_says_nothing_is_taken_to_scale(policy):
    assert ask(policy, view(4, job(1, 1, 4))) == {1: 4}
    assert ask(policy, view(4, job(1, 1, 4), job(2, 1, 4), job(3, 1, 4), job(4, 1, 4))) == {1: 1, 2: 1, 3: 1, 4: 1}


@pytest.mark.parametrize("policy", [Optimus, Afs, Goodput, FinishTimeFair, Balanced])
def test_a_running_job_keeps_what_nobody_wants(policy):
    held = job(1, 1, 4, on=4, profile=profile(1e5, FLAT))
    assert ask(policy, view(8, held, job(2, 2, on=2))) == {1: 4, 2: 2}


@pytest.mark.parametrize("policy", [Optimus, Afs, Goodput, FinishTimeFair, Balanced])
def test_a_newcomer_gets_its_minimum_from_who_has_more(policy):
    assert ask(policy, view(4, job(1, 1, 4, on=4, profile=linear(1e5)), job(2, 2, profile=linear(1e5)))) == {1: 2, 2: 2}
