"""How long one job waits under `fair` where slots are fewer than users: the table of docs/policies.md, and a class."""

from __future__ import annotations

import random
from collections import defaultdict
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import pytest

from jupyter_elastic.scheduler.sim.simulated_hosts import pool
from jupyter_elastic.scheduler.sim.simulation import Costs, Simulation, make_policy
from jupyter_elastic.scheduler.sim.workload import TraceJob
from jupyter_elastic.types import JobStarted, JobSubmitted

ROUNDS = 2


class Row(NamedTuple):
    """Others always have a next job; ann comes with one, and has used so many slot-hours before."""

    users: int
    slots: int
    job_s: float
    used_h: float
    waited: bool = False
    """Whether others waited for a slot meanwhile."""
    half_life_s: float = 0.0


TABLE = [
    Row(3, 2, 600.0, 1.0),
    Row(3, 2, 600.0, 8.0),
    Row(5, 4, 1_800.0, 8.0),
    Row(30, 3, 1_800.0, 8.0),
    Row(3, 2, 600.0, 8.0, half_life_s=604_800.0),
    Row(3, 3, 600.0, 8.0),
    Row(3, 2, 600.0, 8.0, waited=True),
    Row(30, 3, 1_800.0, 8.0, waited=True),
    Row(30, 3, 1_800.0, 8.0, waited=True, half_life_s=604_800.0),
]


def task(owner: str, submitted: float, seconds: float, name: str = "j") -> TraceJob:
    return TraceJob(name=name, submitted=submitted, work=seconds, speed=lambda _: 1.0, owner=owner)


def waited(row: Row) -> tuple[float, int]:
    """Seconds until ann's one job starts, and how many jobs of others begin before it."""
    night = row.used_h * 3600.0 / row.slots
    others = [f"u{number}" for number in range(1, row.users)]
    come = 1.0 if row.waited else night + 10.0
    tasks = [task("ann", 0.0, night) for _ in range(row.slots)]
    tasks += [task(other, come, row.job_s) for _ in range(6) for other in others]
    when = night + 10.0 + row.job_s / 2
    tasks.append(task("ann", when, row.job_s, "mine"))
    options = {"half_life_s": row.half_life_s}
    run = Simulation(
        tasks, make_policy("fair", options), "fair", pool(1, row.slots), options=options, keep_events=True,
        costs=Costs(start=0.0, release=0.0), pace_s=1e6,
    )  # fmt: skip
    run.run()
    mine = next(event.data.job for event in run.events if isinstance(event.data, JobSubmitted) and event.at >= when)
    starts = {event.data.job: event.at for event in run.events if isinstance(event.data, JobStarted)}
    return starts[mine] - when, sum(when < at < starts[mine] for at in starts.values())


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_one_job_starts_within_two_rounds_whatever_was_used_before(row: Row) -> None:
    """A round: each user has had one job begun."""
    seconds, begun = waited(row)
    assert begun <= ROUNDS * (row.users - 1)
    assert seconds <= ROUNDS * row.job_s * row.users / row.slots


class Class(Simulation):
    """Each student presses run, looks at what came of it for a while, and presses again, so many times."""

    presses = 8
    chance = random.Random(3)

    def _exit(self, life: Any, outcome: Any) -> None:
        super()._exit(life, outcome)
        done = [one for one in self.tasks if one.owner == life.task.owner]
        if outcome == "completed" and len(done) < self.presses:
            again = self.now + self.chance.uniform(0.0, 60.0)
            following = task(life.task.owner, again, self.chance.uniform(90.0, 110.0))
            self.tasks = [*self.tasks, following]
            self._at(again, partial(self._arrive, following))


def test_in_a_class_of_thirty_on_three_slots_everybody_waits_about_as_long() -> None:
    """Of the first jobs three start at once and three ten rounds later; with each press the places change."""
    students = [f"s{number}" for number in range(30)]
    run = Class(
        [task(student, 0.0, 100.0) for student in students], make_policy("fair"), "fair", pool(1, 3),
        keep_events=True, costs=Costs(start=0.2, release=0.1), pace_s=1e6,
    )  # fmt: skip
    run.run()
    came: dict[int, tuple[str, float]] = {}
    waits: dict[str, list[float]] = defaultdict(list)
    for event in run.events:
        if isinstance(event.data, JobSubmitted):
            came[event.data.job] = event.data.owner, event.at
        elif isinstance(event.data, JobStarted):
            owner, at = came[event.data.job]
            waits[owner].append(event.at - at)
    means = sorted(fmean(waits[student]) for student in students)
    assert all(len(waits[student]) == Class.presses for student in students)
    assert means[-1] <= 1.3 * means[0], f"{means[0]:.0f} to {means[-1]:.0f} s"
    first = sorted(waits[student][0] for student in students)
    assert first[-1] == pytest.approx(9 * 100.0, rel=0.05), "thirty jobs on three slots take ten rounds"
