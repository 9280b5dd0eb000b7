"""Every installed policy over random pools: legal, deterministic, and nobody starves."""

from __future__ import annotations

import random
from importlib import metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_elastic.testing import policies
from jupyter_elastic.testing.policies import (
    Pool,
    check_description,
    check_ends,
    check_plan,
    check_starves_nobody,
    without_exceptions,
)

SHELF = {entry.name: entry for entry in metadata.entry_points(group="jupyter_elastic.policies")}
VARIANTS = [(name, {}) for name in SHELF] + [
    ("fifo", {"backfill": "first_fit"}),
    ("fifo", {"backfill": "easy", "size": "max"}),
    ("elastic_fifo", {"strict": False, "theta": 0.0, "cooldown": 0.0, "payback": 0.0}),
    ("round_robin", {"mode": "placement"}),
    ("round_robin", {"quantum_s": 60.0}),
    ("las", {"threshold_s": 100.0, "promote": 2.0}),
    ("fair", {"grace_s": 0.0, "patience_s": 100.0}),
    ("goodput", {"batch": 64.0}),
]


def make(name, options):
    kind = SHELF[name].load()
    return kind(kind.Options(**options))


def label(value):
    return value if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in value.items()) or "default"


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=label)
@given(seed=st.integers(0, 2**32))
def test_plans_are_legal_and_deterministic(name, options, seed):
    view = policies._view(random.Random(seed))
    check_plan(make(name, options), view, again=make(name, options))


@pytest.mark.parametrize("name", SHELF)
def test_an_empty_pool_and_one_whose_slots_are_all_out(name):
    for view in policies.views(0):
        assert not check_plan(make(name, {}), view).sizes


CONSERVING = [name for name in SHELF if SHELF[name].load().work_conserving]


def test_every_elastic_policy_claims_work_conservation():
    assert set(SHELF) - set(CONSERVING) == {"coach", "dynamic", "fifo", "las", "round_robin", "srtf"}, (
        "these never grow a job, or only where it was measured that it helps"
    )


@pytest.mark.parametrize("name", CONSERVING)
@given(seed=st.integers(0, 2**32))
def test_no_slot_is_idle_that_a_job_could_use(name, seed):
    """Without the options that make exceptions it holds for running jobs too; with them, for those that start."""
    view = policies._view(random.Random(seed))
    check_plan(without_exceptions(SHELF[name].load()), view)


@pytest.mark.parametrize("name", CONSERVING)
def test_an_empty_pool_is_filled_by_one_job(name):
    pool = Pool(without_exceptions(SHELF[name].load()), capacity=8)
    number = pool.submit(1e7, 1, 16)
    pool.step()
    assert pool.jobs[number].size.workers == 8


@pytest.mark.parametrize("name", SHELF)
def test_is_described(name):
    kind = SHELF[name].load()
    assert kind.name == name
    check_description(kind)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=label)
def test_finite_work_ends(name, options):
    check_ends(make(name, options), seed=3)


# first fit lets small jobs pass a large one for ever, as its textbook does; all others must not
@pytest.mark.parametrize(
    ("name", "options"),
    [(n, o) for n, o in VARIANTS if o.get("backfill") != "first_fit" and o.get("strict", True)],
    ids=label,
)
def test_starves_nobody(name, options):
    check_starves_nobody(make(name, options), bound_s=86_400.0)


@pytest.mark.parametrize("name", SHELF)
def test_a_pool_at_rest_is_left_alone(name):
    """Asked again with nothing changed but the time, a policy that runs everybody changes nothing."""
    pool = Pool(make(name, {}), capacity=8)
    for _ in range(3):
        pool.submit(1e7, 1, 4)
    for _ in range(40):
        pool.step()
    before = {number: job.size for number, job in pool.jobs.items()}
    for _ in range(20):
        pool.step()
        assert {number: job.size for number, job in pool.jobs.items()} == before
