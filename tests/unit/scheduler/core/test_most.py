"""The most slots of users and groups: no policy's plan exceeds them, and nobody else loses by them."""

from __future__ import annotations

import random

import pytest

from jupyter_elastic.scheduler.core import Caps
from jupyter_elastic.scheduler.core.rules.caps import exceeded, within
from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.types import JobStarted, PlanAccepted, PlanRejected, Size, Slot
from tests.support.harness import Harness, host
from tests.unit.scheduler.policies.pool import job, view


def seen(most, *jobs):
    shown, reasons = within(jobs, most)
    return {one.job: (one.min_slots, one.max_slots) for one in shown}, reasons


def test_who_has_no_limit_is_seen_as_he_is():
    jobs = [job(1, 1, 4), job(2, 2, owner="bob")]
    assert within(jobs, Caps({"carl": 1})) == (jobs, {})
    assert not Caps()


def test_what_runs_keeps_what_fits_and_the_first_that_waits_is_told():
    running, queue = job(1, 1, 8, on=4), [job(number, 2, owner="ann") for number in (2, 3, 4)]
    most = Caps({"ann": 4})
    assert seen(most, running, *queue, job(9, 1, 9, owner="bob")) == (
        {1: (1, 2), 2: (2, 2), 9: (1, 9)},
        dict.fromkeys((3, 4), "ann may hold 4 slots at most"),
    )


def test_nothing_overtakes_the_first_that_does_not_fit():
    assert seen(Caps(default=4), job(1, 3, on=3), job(2, 2), job(3, 1)) == (
        {1: (3, 3)}, dict.fromkeys((2, 3), "ann may hold 4 slots at most"),
    )  # fmt: skip


def test_a_limit_that_was_lowered_stops_nobody_who_runs():
    assert seen(Caps({"ann": 2}), job(1, 3, 8, on=8), job(2, 1)) == ({1: (3, 3)}, {2: "ann may hold 2 slots at most"})


def test_a_groups_limit_is_for_its_members_together():
    most = Caps({"ann": 3}, {"lab": 4})
    jobs = [job(1, 1, 8, owner="ann", group="lab"), job(2, 1, 8, owner="bob", group="lab"), job(3, 1, 8, owner="carl")]
    assert seen(most, *jobs)[0] == {1: (1, 2), 2: (1, 2), 3: (1, 8)}


POLICIES = sorted(info.name for info in plugins.policy_infos("fifo", {}))


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_exceeds_a_limit(name):
    """Random pools: the plan for what a policy sees is legal, and within every limit."""
    chance = random.Random(f"most {name}")
    policy = plugins.make_policy(name, {})
    for _ in range(60):
        capacity, jobs, free = chance.randrange(2, 17), [], 0
        free = capacity
        for number in range(1, chance.randrange(2, 14)):
            low = chance.randrange(1, 4)
            high = low + chance.randrange(0, 6)
            on = chance.randrange(low, high + 1) if chance.random() < 0.5 else 0
            on = on if on <= free else 0
            free -= on
            jobs.append(
                job(number, low, high, on=on, owner=chance.choice("abc"), group=chance.choice(["", "g"]),
                    preemptible=chance.random() < 0.8, priority=chance.choice([0, 0, 3]))
            )  # fmt: skip
        most = Caps({"a": chance.randrange(1, 9)}, {"g": chance.randrange(1, 9)}, chance.choice([None, 3]))
        shown, _ = within(jobs, most)
        plan = policy.plan(view(capacity, *shown))
        assert exceeded(jobs, plan, most) is None
        assert sum(size.slots for size in plan.sizes.values()) <= capacity


def test_the_core_refuses_a_plan_that_exceeds_a_limit_and_says_why_others_wait():
    pool = Harness(host("a", 4))
    pool.core.share({}, {}, Caps({"ann": 2}))
    first, second = pool.submit(2, 2), pool.submit(2, 2)
    assert [one.job for one in pool.core.view(pool.now).jobs] == [first]
    assert pool.plan({first: 2, second: 2}) == [
        PlanRejected(policy="fifo", reason="illegal plan: it gives ann 4 slots, and ann may hold 2")
    ]
    assert [type(data) for data in pool.plan({first: 2})] == [PlanAccepted, JobStarted]
    assert pool.core.state.reasons[second] == "ann may hold 2 slots at most"
    assert "ann may hold 2 slots at most" in pool.core.explain(second, pool.now)
    assert not pool.core.wants_plan
    pool.core.share({}, {}, Caps({"ann": 4}))
    assert pool.core.wants_plan
    assert len(pool.core.view(pool.now).jobs) == 2


@pytest.mark.parametrize(
    ("most", "words"),
    [
        (Caps(default=2), "ann may hold 2 slots at most"),
        (Caps({"ann": 2}), "ann may hold 2 slots at most"),
        (Caps(groups={"lab": 2}), "lab may hold 2 slots at most"),
    ],
)
def test_every_job_that_a_limit_holds_back_is_told_and_the_journal_once(most, words):
    pool = Harness(host("a", 4), most=most)
    running = pool.running(1, 1, 1, group="lab")
    waiting = [pool.submit(2, 2, group="lab"), pool.submit(1, 1, group="lab"), pool.submit(1, 4, group="lab")]
    pool.core.view(pool.now)
    pool.plan({running: 1})
    assert [words in pool.core.explain(job, pool.now) for job in waiting] == [True] * 3
    assert words not in pool.core.explain(pool.submit(1, 1, by="carl"), pool.now)
    said = [event.data.reasons for event in pool.events if isinstance(event.data, PlanAccepted)][-1]
    assert said == {str(waiting[0]): words}


def test_every_job_that_waits_for_slots_for_servers_is_told():
    slots = tuple(Slot(index=number, for_servers=number > 2) for number in range(5))
    pool = Harness(host("a", 5, slots=slots))
    running = pool.submit(1, 1, min_servers=1, max_servers=1)
    pool.plan({running: Size(workers=1, servers=1)})
    waiting = [pool.submit(1, 1, min_servers=least, max_servers=2) for least in (2, 1)]
    pool.core.view(pool.now)
    pool.plan({running: Size(workers=1, servers=1)})
    assert ["for servers, and 1 of 2 are left" in pool.core.explain(job, pool.now) for job in waiting] == [True, False]
    assert "a job before it waits for slots for servers" in pool.core.explain(waiting[1], pool.now)
