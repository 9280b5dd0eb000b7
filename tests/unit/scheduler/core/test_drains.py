"""What leaves drained slots when, and that nothing new comes there."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_elastic.types import (
    DrainsChanged,
    DrainSlots,
    ExitReported,
    HostsReported,
    JobRequeued,
    PlanRejected,
    ReleaseReported,
    RescaleRequested,
    StopRequested,
    Tick,
    UndrainSlots,
)
from jupyter_elastic.types.errors import BadRequest, NotFound
from tests.support.harness import Harness, host


def drain(pool: Harness, target: str, **what: Any) -> DrainsChanged:
    [data] = pool.step(DrainSlots, by="ada", target=target, reason="the fan", **what)
    assert isinstance(data, DrainsChanged)
    return data


def due(pool: Harness) -> bool:
    """Whether the daemon would wake the core at once."""
    return pool.core.next_wakeup(pool.now) == pool.now


def states(pool: Harness) -> dict[str, str]:
    return {slot.slot: slot.state for slot in pool.core.slots()}


def test_a_drained_slot_takes_nothing_new_and_says_why_until_it_is_undrained() -> None:
    pool = Harness(host("lab", 2))
    drain(pool, "lab:0")
    assert states(pool) == {"lab:0": "out", "lab:1": "free"}
    assert pool.core.slots()[0].drained == "drained by ada: the fan"
    assert pool.core.view(pool.now).capacity == 1
    job = pool.submit(2, 2)
    text = pool.core.explain(job, pool.now)
    assert "can't give 2 now (1 slot out)" in text
    assert "lab:0 is drained by ada: the fan." in text
    assert isinstance(pool.plan({job: 2})[0], PlanRejected)
    assert pool.core.until(job, pool.now) == ""
    pool.step(UndrainSlots, target="lab:0")
    assert pool.core.wants_plan
    pool.plan({job: 2})
    assert pool.job(job).slots == ("lab:0", "lab:1")


def test_a_job_gets_the_slots_beside_a_drained_one() -> None:
    pool = Harness(host("lab", 2))
    drain(pool, "lab:0")
    job = pool.submit(1, 1)
    pool.plan({job: 1})
    assert pool.job(job).slots == ("lab:1",)


def test_an_elastic_job_shrinks_off_at_once_and_the_slot_is_nobody_elses() -> None:
    pool = Harness(host("lab", 2))
    job = pool.running(2)
    other = pool.submit(1, 1)
    drain(pool, "lab:1")
    assert due(pool)
    [data] = pool.step(Tick)
    assert isinstance(data, RescaleRequested)
    assert (data.slots, data.reason) == (("lab:0",), "lab:1 is drained by ada: the fan")
    assert not due(pool)
    pool.settle(job)
    pool.step(ReleaseReported, job=job, attempt=1, slots=("lab:1",))
    assert states(pool) == {"lab:0": "leased", "lab:1": "out"}
    assert isinstance(pool.plan({job: 1, other: 1})[0], PlanRejected)


def test_an_elastic_job_that_can_not_shrink_is_paused_at_once() -> None:
    pool = Harness(host("lab", 2))
    job = pool.running(2, least=2)
    drain(pool, "lab:1", grace_s=1000.0)
    [data] = pool.step(Tick)
    assert isinstance(data, StopRequested)
    assert data.how == "preempt"
    requeued = pool.step(ExitReported, job=job, attempt=1, outcome="preempted")[-1]
    assert isinstance(requeued, JobRequeued)
    assert requeued.reason == "lab:1 is drained by ada: the fan"


@pytest.mark.parametrize("elastic", [False, None])
def test_a_rigid_job_has_the_grace_and_no_plan_takes_it_its_slots(elastic: bool | None) -> None:
    pool = Harness(host("lab", 2))
    job = pool.submit(1, 2)
    pool.plan({job: 1})
    pool.settle(job, elastic=elastic)
    drain(pool, "lab", grace_s=60.0)
    assert pool.core.next_wakeup(pool.now) == pool.now + 60.0
    assert pool.step(Tick) == []
    [seen] = pool.core.view(pool.now).jobs
    assert (seen.preemptible, seen.min_slots, seen.max_slots, pool.core.view(pool.now).capacity) == (False, 1, 1, 1)
    assert isinstance(pool.plan({})[0], PlanRejected)
    assert "it is stopped and queued again in 5" in pool.core.explain(job, pool.now)
    pool.now += 60
    [data] = pool.step(Tick)
    assert isinstance(data, StopRequested)
    pool.step(ExitReported, job=job, attempt=1, outcome="preempted")
    assert pool.job(job).phase == "queued"
    assert set(states(pool).values()) == {"out"}


def test_without_a_grace_a_rigid_job_runs_to_its_end_and_one_that_becomes_elastic_leaves() -> None:
    pool = Harness(host("lab", 4))
    job = pool.submit(1, 2)
    pool.plan({job: 2})
    pool.settle(job, elastic=None)
    drain(pool, "lab:0")
    assert pool.core.next_wakeup(pool.now) is None
    assert "it may run there to its end" in pool.core.explain(job, pool.now)
    pool.settle(job, elastic=True)
    assert due(pool)
    [data] = pool.step(Tick)
    assert isinstance(data, RescaleRequested)
    assert data.slots == ("lab:1",)


def test_one_that_is_not_to_be_paused_has_the_grace_too() -> None:
    pool = Harness(host("lab", 2))
    pool.running(2, least=2, preemptible=False)
    drain(pool, "", grace_s=50.0)
    assert pool.step(Tick) == []
    pool.now += 50
    assert isinstance(pool.step(Tick)[0], StopRequested)


def test_maintenance_pauses_what_can_be_and_lets_all_wait_who_come() -> None:
    pool = Harness(host("lab", 2))
    first = pool.running(2)
    drain(pool, "", grace_s=300.0)
    pool.step(Tick)
    pool.step(ExitReported, job=first, attempt=1, outcome="preempted")
    second = pool.submit(2, 2)
    for job in (first, second):
        text = pool.core.explain(job, pool.now)
        assert "The pool is in maintenance by ada: the fan (since" in text
        assert pool.core.until(job, pool.now) == ""
        assert pool.core.jobs(job=job)[0].reason == "maintenance by ada: the fan"
    assert pool.core.view(pool.now).capacity == 0
    assert pool.plan({}) == []
    pool.step(HostsReported, hosts=(host("lab", 3),))
    assert set(states(pool).values()) == {"out"}, "a slot that comes meanwhile is in maintenance too"
    pool.step(UndrainSlots, target="")
    assert set(states(pool).values()) == {"free"}


def test_a_second_drain_of_the_same_name_changes_reason_and_grace_and_others_stand_beside_it() -> None:
    pool = Harness(host("lab", 2))
    drain(pool, "lab:0")
    drain(pool, "lab")
    data = drain(pool, "lab:0", grace_s=5.0)
    assert [(one.target, one.due_at) for one in data.drains] == [("lab", None), ("lab:0", pool.now + 5.0)]
    pool.step(UndrainSlots, target="lab")
    assert states(pool) == {"lab:0": "out", "lab:1": "free"}


def test_wrong_names_are_refused() -> None:
    pool = Harness(host("lab", 2))
    with pytest.raises(NotFound, match="no host or slot 'lab:7'"):
        pool.step(DrainSlots, target="lab:7")
    with pytest.raises(BadRequest, match="not in maintenance"):
        pool.step(UndrainSlots, target="")
    drain(pool, "lab")
    drain(pool, "")
    off = r"`jupyter elastic pool maintenance off`"
    with pytest.raises(BadRequest, match=rf"drained are: lab, the whole pool \({off}\)"):
        pool.step(UndrainSlots, target="lab:1")


def test_a_job_that_is_over_leaves_its_drained_slot() -> None:
    pool = Harness(host("lab", 1))
    job = pool.submit(1, 1)
    pool.plan({job: 1})
    pool.settle(job, elastic=False)
    drain(pool, "lab:0", grace_s=500.0)
    pool.step(ExitReported, job=job, attempt=1, outcome="completed")
    assert states(pool) == {"lab:0": "out"}
    assert pool.core.next_wakeup(pool.now) is None


def test_a_job_that_needs_a_slot_that_is_drained_and_still_leased_is_told() -> None:
    pool = Harness(host("lab", 2))
    pool.settle(pool.running(2, 2, 2), elastic=False)
    drain(pool, "lab:0")
    whole, part = pool.submit(2, 2), pool.submit(1, 1)
    text = pool.core.explain(whole, pool.now)
    assert "can't give 2 now (1 slot out or drained)" in text
    assert "lab:0 is drained by ada: the fan." in text
    assert pool.core.until(whole, pool.now) == ""
    assert "drained" not in pool.core.explain(part, pool.now), "it can have the other one"
    pool.step(UndrainSlots, target="lab:0")
    assert "drained" not in pool.core.explain(whole, pool.now)


def test_a_job_for_some_hosts_is_told_of_the_drain_there_and_no_other() -> None:
    pool = Harness(host("a", 2, labels={"gpu": "A100"}), host("b", 4, labels={"gpu": "T4"}))
    pool.settle(pool.running(2, 2, 2, on={"gpu": "A100"}), elastic=False)
    drain(pool, "a")
    here, there = pool.submit(1, 1, on={"gpu": "A100"}), pool.submit(4, 4, on={"gpu": "T4"})
    assert "a is drained by ada: the fan." in pool.core.explain(here, pool.now)
    assert pool.core.until(here, pool.now) == ""
    assert "drained" not in pool.core.explain(there, pool.now)


def test_a_drained_slot_is_no_part_of_when_there_is_room() -> None:
    pool = Harness(host("lab", 3))
    first = pool.running(1, 1, 1, estimate_s=100.0)
    pool.settle(first, elastic=False)
    second = pool.running(1, 1, 1, estimate_s=1000.0)
    pool.settle(second, elastic=False)
    drain(pool, pool.job(first).slots[0])
    job = pool.submit(2, 2)
    assert "in about 17 min" in pool.core.until(job, pool.now)
