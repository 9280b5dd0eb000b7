"""The figures of a comparison, each against a value counted by hand."""

from __future__ import annotations

import math

import pytest

from jupyter_elastic.scheduler.sim import schedule_metrics
from jupyter_elastic.scheduler.sim.schedule_metrics import JobTimeline, SimulatedRun, Span


def timeline(name: str, submitted: float, started: float, ended: float, slots: int = 1, **more: object) -> JobTimeline:
    made = JobTimeline(name, submitted, started=started, ended=ended, spans=[Span(started, ended, slots)])
    for key, value in more.items():
        setattr(made, key, value)
    return made


def test_every_figure_of_a_small_run() -> None:
    first = timeline("a", 0, 0, 100, 2, alone=lambda share: 100 / min(share, 2), deadline=100.0, restarts=1)
    second = timeline("b", 0, 50, 150, 2, alone=lambda share: 100 / min(share, 2), deadline=120.0)
    run = SimulatedRun("p", 4, [first, second], decisions=[0.001, 0.003], wall=1.5)
    row = schedule_metrics.summary(run)
    assert list(row) == list(schedule_metrics.KEYS)
    assert row["policy"] == "p"
    assert row["avg_jct_s"] == 125
    assert row["p50_jct_s"] == 125
    assert row["p99_jct_s"] == pytest.approx(149.5)
    assert row["makespan_s"] == 150
    assert row["avg_wait_s"] == 25
    assert row["utilisation"] == pytest.approx(400 / 600)
    assert row["restarts_per_job"] == 0.5
    # a: two jobs all the time, a share of 2 slots; b: 250 job-seconds in 150 s, a share of 2.4, and uses no more than 2
    assert row["rho_worst"] == pytest.approx(150 / 50)
    assert row["rho_over_105"] == 1.0
    assert row["deadlines_met"] == 0.5
    assert row["decision_ms_p50"] == pytest.approx(2.0)
    assert row["wall_s"] == 1.5


def test_what_cannot_be_given_is_none() -> None:
    row = schedule_metrics.summary(SimulatedRun("p", 4, [JobTimeline("a", 5)]))
    assert row["avg_jct_s"] is None
    assert row["deadlines_met"] is None
    assert row["rho_worst"] is None


def test_percentile_lies_between_ranks() -> None:
    assert schedule_metrics.percentile([3, 1, 2], 0.5) == 2
    assert schedule_metrics.percentile([1, 2], 0.25) == 1.25
    assert schedule_metrics.percentile([7], 0.99) == 7
    assert math.isnan(schedule_metrics.percentile([], 0.5))


def test_alone_is_time_sliced_below_the_least_size() -> None:
    alone = schedule_metrics.fluid_alone(float, 100.0, (2, 4))
    assert alone(4) == 25
    assert alone(3) == pytest.approx(100 / 3)  # four slots, three quarters of the time
    assert alone(1) == 100
    assert alone(100) == 25
