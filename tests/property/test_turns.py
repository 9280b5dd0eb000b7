"""Whoever has one job under `fair` gets a slot soon, whatever it and the others have used and however many they are."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from jupyter_elastic.scheduler.sim.simulated_hosts import pool
from jupyter_elastic.scheduler.sim.simulation import Costs, Simulation, make_policy
from jupyter_elastic.scheduler.sim.workload import TraceJob
from jupyter_elastic.types import Event, JobEnded, JobStarted, JobSubmitted

K = 2
"""So many jobs any other user (or group) may begin before a job of somebody who holds no slot."""

NO_SHRINKING = (Phase.explicit, Phase.generate)


def simulated(tasks: list[TraceJob], slots: int, **more) -> list[Event]:
    options = more.pop("options", {})
    run = Simulation(
        tasks, make_policy("fair", options), "fair", pool(1, slots), options=options, keep_events=True,
        costs=Costs(start=0.2, release=0.1), pace_s=1e4, **more,
    )  # fmt: skip
    run.run()
    return run.events


def task(owner: str, submitted: float, seconds: float, **more) -> TraceJob:
    return TraceJob(name="j", submitted=submitted, work=seconds, speed=lambda _: 1.0, owner=owner, **more)


def begun_before(events: list[Event], name: str, what: str = "owner") -> Counter[str]:
    """How many jobs each other user or group began since the job of that name came, and was the only one of its owner.

    Of its group, where `what` says so.
    """
    whose: dict[int, str] = {}
    unfinished, mine, counts = Counter[str](), None, Counter[str]()
    for event in events:
        data = event.data
        if isinstance(data, JobSubmitted):
            whose[data.job] = data.owner if what == "owner" else data.spec.group or data.owner
            unfinished[whose[data.job]] += 1
            mine = data.job if data.spec.name == name else mine
        elif isinstance(data, JobEnded):
            unfinished[whose[data.job]] -= 1
        elif isinstance(data, JobStarted):
            if data.job == mine:
                return counts
            if mine is not None and unfinished[whose[mine]] == 1:
                counts[whose[data.job]] += 1
    raise AssertionError(f"{name} never started")


def crowd(chance: random.Random, users: int, slots: int, *, groups: int = 0) -> tuple[list[TraceJob], float]:
    """What others submit, who always have a next job, and when the last of them has come."""
    longest = 10 ** chance.uniform(0, 3)
    tasks, came = [], 0.0
    for user in range(users):
        at = chance.choice((0.0, chance.uniform(0, 2 * longest)))
        came = max(came, at)
        own = longest * chance.choice((1.0, 1.0, 0.3, 0.01))
        group = f"g{user % groups}" if groups else ""
        tasks += [
            task(f"u{user}", at, own * chance.uniform(0.5, 1.0), group=group)
            for _ in range(chance.choice((4, 12, 30)) + 2 * slots)
        ]
    return tasks, came


@settings(max_examples=12, deadline=None, phases=NO_SHRINKING)
@given(seed=st.integers(0, 2**32))
def test_one_job_of_anybody_starts_before_another_has_begun_more_than_k(seed: int) -> None:
    chance = random.Random(seed)
    users, slots = chance.randint(1, 9), chance.randint(1, 4)
    others, came = crowd(chance, users, slots)
    night = [task("ann", 0.0, chance.uniform(1, 50_000)) for _ in range(chance.choice((0, 1, 2 * slots)))]
    begin = chance.choice((0.0, 100.0, 60_000.0))
    late = [TraceJob(**{**vars(one), "submitted": one.submitted + begin}) for one in others]
    when = begin + came + chance.uniform(0, 100)
    mine = TraceJob(**{**vars(task("ann", when, 10.0)), "name": "mine"})
    counts = begun_before(simulated([*night, *late, mine], slots), "mine")
    assert max(counts.values(), default=0) <= K


@settings(max_examples=7, deadline=None, phases=NO_SHRINKING)
@given(seed=st.integers(0, 2**32))
def test_one_job_of_any_group_starts_before_another_has_begun_more_than_k(seed: int) -> None:
    chance = random.Random(seed)
    groups, slots = chance.randint(1, 4), chance.randint(1, 3)
    others, came = crowd(chance, groups * chance.randint(1, 3), slots, groups=groups)
    night = [task("ann", 0.0, chance.uniform(1, 20_000), group="lab") for _ in range(chance.choice((0, 2 * slots)))]
    begin = chance.choice((0.0, 30_000.0))
    late = [TraceJob(**{**vars(one), "submitted": one.submitted + begin}) for one in others]
    mine = TraceJob(**{**vars(task("bob", begin + came + 1.0, 10.0, group="lab")), "name": "mine"})
    counts = begun_before(simulated([*night, *late, mine], slots), "mine", "group")
    assert max(counts.values(), default=0) <= K
