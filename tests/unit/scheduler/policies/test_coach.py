"""Coach: sizes learned from speeds, of a training that is measured as it goes with noise; reports that say nothing."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from statistics import mean, quantiles
from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_elastic.scheduler.policies.coach import Coach
from jupyter_elastic.scheduler.policies.optimus import Optimus
from jupyter_elastic.scheduler.sim.schedule_metrics import summary
from jupyter_elastic.scheduler.sim.simulation import simulate
from jupyter_elastic.scheduler.sim.workload import synthetic
from jupyter_elastic.testing.policies import check_plan
from jupyter_elastic.types import JobView, Profile, Size, Speed, View
from tests.unit.scheduler.policies.pool import NOW, ask, job, linear, profile, view

SEEDS = 200 if "JUPYTER_ELASTIC_TEST_EVERYTHING" in os.environ else 9
Truth = Callable[[int, int], float]


class Training:
    """One training under `coach` on a pool of its own: each size is measured once it was there, with noise."""

    def __init__(self, truth: Truth, chance: random.Random, *, noise: float, workers: int, servers: int) -> None:
        self.truth, self.chance, self.noise = truth, chance, noise
        self.speeds: dict[tuple[int, int], float] = {}
        self.memo: Any = None
        self.now = NOW
        self.size = Size(0)
        least = int(servers > 0)
        self.job = job(1, 1, workers, name="training", min_servers=least, max_servers=servers)
        self.capacity = workers + servers
        self.changes = 0

    def step(self, *others: JobView) -> Size:
        """One plan, an hour, and what was measured in it."""
        points = tuple(
            Speed(workers=w, servers=p, samples_per_s=speed) for (w, p), speed in sorted(self.speeds.items())
        )
        known = Profile(speeds=points, done=1e3, remaining=1e9, rescale_cost_s=2.0)
        phase: Any = "running" if self.size.workers else "queued"
        shown = replace(self.job, phase=phase, size=self.size, changed_at=self.now - 3600.0, profile=known)
        plan = check_plan(Coach(Coach.Options()), view(self.capacity, shown, *others, now=self.now, memo=self.memo))
        self.memo, self.said = plan.memo, plan.reasons.get(1, "")
        self.changes += plan.sizes[1] != self.size
        self.size = plan.sizes[1]
        self.now += 3600.0
        size = self.size.workers, self.size.servers
        self.speeds[size] = self.chance.gauss(1, self.noise) / self.truth(*size)
        return self.size

    def settle(self) -> Size:
        """Plan until nothing changes any more; the size, and a failure when it never rests."""
        calm, last = 0, self.size
        for _ in range(60):
            size = self.step()
            calm, last = (calm + 1 if size == last else 0), size
            if calm == 3:
                return size
        raise AssertionError(f"it never rests: {self.changes} changes")


def drawn(chance: random.Random) -> Truth:
    """A random parameter-server model."""
    b = chance.uniform(0, 0.3)
    c, d, e = (10 ** chance.uniform(*by) for by in ((-2, 0), (-3, -1), (-3, -1)))
    return lambda w, p: 1 / w + b + c * w / p + d * w + e * p


def test_with_five_percent_noise_it_finds_a_size_that_loses_little_and_rests():
    losses, measured = [], []
    for seed in range(SEEDS):
        chance = random.Random(seed)
        truth = drawn(chance)
        training = Training(truth, chance, noise=0.05, workers=8, servers=12)
        size = training.settle()
        best = min(truth(w, p) for w in range(1, 9) for p in range(1, 13))
        losses.append(1 - best / truth(size.workers, size.servers))
        measured.append(len(training.speeds))
    assert mean(losses) <= 0.04
    assert SEEDS < 100 or quantiles(losses, n=20)[-1] <= 0.1
    assert mean(measured) <= 10, "few of the 96 sizes are tried"


@pytest.mark.parametrize("servers", [0, 12])
def test_it_stays_on_the_least_size_where_nothing_scales(servers):
    """The finding of the thesis on its small cluster."""
    for seed in range(SEEDS // 3):
        chance = random.Random(seed)
        slower = chance.uniform(0.0, 0.3)
        training = Training(
            lambda w, p, s=slower: 1.0 + s * (w - 1) + s * max(p - 1, 0),
            chance, noise=0.005, workers=8, servers=servers,
        )  # fmt: skip
        assert training.settle() == Size(1, int(servers > 0)), seed
        assert len(training.speeds) <= 6, "little was tried"


def test_each_size_is_tried_once_and_what_disappoints_is_left():
    training = Training(lambda w, p: 1 / w + 0.4 * w, random.Random(1), noise=0.0, workers=8, servers=0)
    assert training.settle() == Size(2)
    assert training.changes <= 4


def test_only_measured_sizes_count_while_somebody_waits():
    ready = profile(1e9, {1: 1.0, 2: 1.9})
    alone = ask(Coach, view(8, job(1, 1, 8, on=2, profile=ready)))
    assert alone == {1: 4}, "twice as many as were measured"
    assert ask(Coach, view(8, job(1, 1, 8, on=2, profile=ready), job(2, 7))) == {1: 1, 2: 7}
    assert ask(Coach, view(8, job(1, 1, 8, on=2, profile=ready), job(2, 8))) == {1: 2}, "it fits later"
    assert ask(Coach, view(8, job(1, 1, 8, on=2, profile=ready)), explore=False) == {1: 2}


def test_the_slot_goes_where_it_saves_most_and_pays():
    good, poor = linear(1e6, top=8), profile(1e6, {1: 1.0, 2: 1.1, 3: 1.15, 4: 1.2})
    found = ask(Coach, view(8, job(1, 1, 8, on=1, profile=good), job(2, 1, 4, on=1, profile=poor)))
    assert found[1] > found[2]
    almost_done = linear(3.0, top=8, cost=30.0)
    assert ask(Coach, view(8, job(1, 1, 8, on=1, profile=almost_done))) == {1: 1}


def test_a_newcomer_shares_with_who_holds_all():
    holds = linear(1e5, top=8, power=0.7)
    new = profile(1e5, {1: 1.0})
    found = ask(Coach, view(8, job(1, 1, 8, on=7, profile=holds), job(2, 1, 8, on=1, profile=new)))
    assert found == {1: 6, 2: 2}


def test_jobs_of_one_workload_share_what_was_measured():
    first = view(8, job(1, 1, 8, on=4, name="digits", profile=linear(1e6, top=4)))
    memo = Coach(Coach.Options()).plan(first).memo
    again = job(7, 1, 8, name="digits", submitted_at=NOW)
    assert ask(Coach, view(8, again, memo=memo)) == {7: 8}
    assert ask(Coach, view(8, replace(again, name="other"), memo=memo)) == {7: 1}
    assert ask(Coach, view(8, replace(again, owner="bob"), memo=memo)) == {7: 1}


def test_a_memo_of_many_workloads_stays_small():
    memo: Any = None
    for number in range(60):
        shown = view(8, job(number, 1, 8, on=4, name=f"job-{number}", profile=linear(1e6, top=20)), memo=memo)
        memo = check_plan(Coach(Coach.Options()), shown).memo
    assert len(memo) == 40


@pytest.mark.parametrize(
    "silent",
    [
        Profile(),
        Profile(done=5.0, remaining=None),
        Profile(speeds=(Speed(workers=3, samples_per_s=1.0),), remaining=1e9),  # not of the size it has
    ],
)
def test_a_job_whose_size_nobody_measured_stays_as_it_is(silent):
    assert ask(Coach, view(8, job(1, 1, 8, on=4, profile=silent))) == {1: 4}


def test_a_fit_that_explains_nothing_moves_nobody():
    wild = profile(1e9, {1: 1.0, 2: 9.0, 3: 0.4, 4: 3.0, 5: 0.2, 6: 8.5})
    assert ask(Coach, view(16, job(1, 1, 16, on=2, profile=wild))) == {1: 2}


def test_an_outlier_does_not_lead_it_astray():
    speeds = {n: n / (1 + 0.02 * n * n) for n in (1, 2, 3, 4, 5, 6)} | {3: 0.2}
    found = ask(Coach, view(16, job(1, 1, 16, on=6, profile=profile(1e9, speeds))))
    assert 5 <= found[1] <= 8


@pytest.mark.parametrize(
    "losses",
    [
        (),
        tuple((float(x), 1.0 + x) for x in range(1, 20)),  # rises
        tuple((float(x), 1.0) for x in range(1, 20)),
        tuple((float(x), 1 / x) for x in range(1, 20)),
    ],
)
def test_an_unknown_number_of_epochs_is_no_obstacle(losses):
    known = Profile(
        speeds=(Speed(workers=1, samples_per_s=1.0), Speed(workers=2, samples_per_s=1.9)), done=1e5, losses=losses
    )
    assert ask(Coach, view(8, job(1, 1, 2, on=1, profile=known))) == {1: 2}


def test_the_reason_names_the_fit_and_its_error():
    plan = Coach(Coach.Options()).plan(view(8, job(1, 1, 8, on=4, profile=linear(1e9, top=4))))
    assert plan.reasons[1].startswith("8 workers: expected to be faster: it is tried (4 sizes measured, fit allreduce")
    assert "off by" in plan.reasons[1]


def test_in_the_simulator_it_keeps_up_with_optimus():
    """Which is told how long jobs are and takes them to scale before anything is measured."""
    turnaround = {}
    for policy in (Coach, Optimus):
        runs = [simulate(synthetic(15, slots=8, load=0.7, seed=5), policy.name, nodes=2)]
        assert not any(run.rejected for run in runs)
        turnaround[policy] = mean(summary(run)["avg_jct_s"] for run in runs)
    assert turnaround[Coach] <= 1.10 * turnaround[Optimus]


def test_a_view_of_servers_and_of_none_is_planned():
    mixed = Profile(
        speeds=(Speed(workers=1, samples_per_s=1.0), Speed(workers=1, servers=1, samples_per_s=math.nextafter(1, 2))),
        remaining=1e9,
    )
    shown: View = view(8, job(1, 1, 4, on=1, min_servers=0, max_servers=2, profile=mixed))
    check_plan(Coach(Coach.Options()), shown)
