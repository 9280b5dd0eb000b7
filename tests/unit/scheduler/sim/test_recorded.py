"""A pool's own journal as a trace: simulated events are journaled, read back, and simulated again."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.scheduler.sim import recorded
from jupyter_elastic.scheduler.sim.recorded_timeline import Fold
from jupyter_elastic.scheduler.sim.simulated_hosts import pool
from jupyter_elastic.scheduler.sim.simulation import Costs, Simulation, make_policy
from jupyter_elastic.scheduler.sim.tables import TraceError
from jupyter_elastic.scheduler.sim.workload import synthetic
from tests.support.backtest import backtest


def simulation(policy: str = "elastic_fifo", jobs: int = 30) -> Simulation:
    made = Simulation(
        synthetic(jobs, slots=8, mean_s=120, load=1.2, seed=2), make_policy(policy), policy, pool(2, 4),
        costs=Costs(start=3.0, rescale=1.5, release=0.5, stop=1.0), keep_events=True,
    )  # fmt: skip
    made.run()
    return made


def test_a_journal_predicts_its_own_makespan(tmp_path: Path) -> None:
    real = simulation()
    journal = Journal(tmp_path / "journal.sqlite")
    journal.append(real.events)
    journal.close()
    events = recorded.read_events(tmp_path / "journal.sqlite")
    assert events == real.events
    costs = recorded.costs_of(events)
    assert (costs.start, costs.rescale) == (pytest.approx(3.0), pytest.approx(1.5))
    assert costs.release == pytest.approx(0.5)
    assert recorded.capacity_of(events) == {"node0": 4, "node1": 4}
    tasks = recorded.tasks_of(events)
    assert len(tasks) == 30
    again = Simulation(tasks, make_policy("elastic_fifo"), "elastic_fifo", pool(2, 4), costs=costs).run()
    assert again.end - again.start == pytest.approx(real.run_.end - real.run_.start, rel=0.02)
    fold = Fold()
    fold.see(events)
    assert {timeline.name: timeline.ended for timeline in fold.timelines.values()} == {
        timeline.name: timeline.ended for timeline in real.run_.timelines
    }


def test_waits_are_predicted_with_a_range_that_mostly_holds() -> None:
    tasks = synthetic(50, slots=8, load=0.4, mean_s=300, seed=5)
    run = Simulation(tasks, make_policy("fifo"), "fifo", pool(2, 4), keep_events=True)
    run.run()
    found = backtest(run.events, make_policy)
    assert len(found.pairs) == 50
    assert found.coverage is not None
    assert found.coverage >= 0.6
    waiting = [(eta, real) for eta, real in found.pairs if real > 60]
    assert all(eta.low_s <= eta.guess_s * 1.0001 + 1 for eta, _ in waiting)


def test_what_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        recorded.read_events(tmp_path / "absent")
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(TraceError, match="expected a pool's journal"):
        recorded.read_events(tmp_path / "text")
    with sqlite3.connect(tmp_path / "odd.sqlite") as database:
        database.execute("create table events (seq integer, at real, by text, cause text, kind text, body text)")
        database.execute("insert into events values (1, 0, 'x', 'y', 'JobEnded', '{\"type\": \"Nothing\"}')")
    database.close()
    with pytest.raises(TraceError, match="event 1, column body: expected an event"):
        recorded.read_events(tmp_path / "odd.sqlite")
