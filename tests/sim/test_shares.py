"""Shares follow weights and quotas within 5 % over 200 jobs of two users, while both have work waiting."""

from __future__ import annotations

import random

import pytest

from jupyter_elastic.scheduler.journal.slot_usage import Usage
from jupyter_elastic.scheduler.sim.simulated_hosts import pool
from jupyter_elastic.scheduler.sim.simulation import Costs, Simulation, make_policy
from jupyter_elastic.scheduler.sim.workload import TraceJob
from jupyter_elastic.types import JobStarted

JOBS = 200


def slot_seconds(slots: int, jobs: int = JOBS, **shares) -> dict[str, float]:
    """What two users have used until one of them has none waiting."""
    options = shares.pop("options", {})
    chance = random.Random(11)
    tasks = [
        TraceJob(name="j", submitted=0.0, work=chance.uniform(20, 400), speed=lambda _: 1.0, owner=owner)
        for owner in ("ann", "bob")
        for _ in range(jobs // 2)
    ]
    run = Simulation(
        tasks, make_policy("fair", options), "fair", pool(1, slots), options=options, keep_events=True,
        costs=Costs(start=0.2, release=0.1), **shares,
    )  # fmt: skip
    run.run()
    owners = {number: task.owner for number, task in enumerate(tasks, 1)}
    waiting = {"ann": jobs // 2, "bob": jobs // 2}
    used = Usage()
    for event in run.events:
        used.take(event)
        if isinstance(event.data, JobStarted):
            waiting[owners[event.data.job]] -= 1
            if not all(waiting.values()):
                break
    rows = used.rows(0.0, event.at)
    return {owner: sum(row.slot_s for row in rows if row.user == owner) for owner in ("ann", "bob")}


@pytest.mark.parametrize(("slots", "weight"), [(6, 2.0), (8, 1.0), (5, 2.0), (4, 2.0), (7, 3.0), (2, 10.0)])
def test_weights(slots, weight):
    """Also where whole slots can't follow them at any moment: of five slots 2:1 is 3.33 and 1.67."""
    used = slot_seconds(slots, weights={"ann": weight})
    assert used["ann"] / sum(used.values()) == pytest.approx(weight / (weight + 1), rel=0.05)


def test_a_quota_above_the_share_is_kept():
    used = slot_seconds(8, quotas={"ann": 6})
    assert used["ann"] / sum(used.values()) == pytest.approx(6 / 8, rel=0.05)
