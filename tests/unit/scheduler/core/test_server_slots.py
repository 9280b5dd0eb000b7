"""Slots for servers alone: a pool of GPUs gives a server none of them, whatever the policy."""

from __future__ import annotations

import pytest

from jupyter_elastic.scheduler.core.rules.server_slots import within
from jupyter_elastic.scheduler.planning.plugins import make_policy
from jupyter_elastic.scheduler.slots.slot_sources import with_servers
from jupyter_elastic.types import (
    DrainSlots,
    Host,
    HostsReported,
    JobStarted,
    PlanRejected,
    Profile,
    Propose,
    ReleaseReported,
    RescaleRequested,
    Resize,
    Size,
    Slot,
    Speed,
)
from jupyter_elastic.types.errors import BadRequest
from tests.support.harness import Harness
from tests.unit.scheduler.policies import pool as drawn

GPUS = Host(name="a", kind="gpu", slots=tuple(Slot(index=i, device=f"GPU-{i}") for i in range(2)))


def gpu_pool(servers: int = 2) -> Harness:
    """Two GPUs and slots for servers."""
    return Harness(with_servers(GPUS, servers))


def test_a_server_takes_no_gpu() -> None:
    pool = gpu_pool()
    job = pool.submit(1, 2, min_servers=1, max_servers=2)
    (data,) = (data for data in pool.plan({job: Size(2, 2)}) if isinstance(data, JobStarted))
    assert (data.slots, data.servers) == (("a:0", "a:1", "a:1000", "a:1001"), 2)
    (launch,) = pool.effects
    assert launch.devices == {"a:0": "GPU-0", "a:1": "GPU-1"}
    pool.settle(job)
    assert pool.core.view(pool.now).capacity == 2
    assert pool.core.state.server_capacity == 2
    assert [(slot.slot, slot.for_servers) for slot in pool.core.slots()][2:] == [("a:1000", True), ("a:1001", True)]


def test_it_counts_for_nobody() -> None:
    pool = gpu_pool()
    job = pool.submit(1, 2, min_servers=2, max_servers=2)
    pool.plan({job: Size(1, 2)})
    began = pool.now
    pool.settle(job)
    (view,) = pool.core.view(pool.now).jobs
    assert view.attained_s == pool.now - began
    assert pool.core.view(pool.now + 100).used[""]["ann"] == pytest.approx(100 + pool.now - began, rel=1e-3)


def test_workers_never_go_where_servers_do() -> None:
    pool = gpu_pool()
    job = pool.submit(1, 4)
    (data,) = (data for data in pool.plan({job: 3}) if isinstance(data, PlanRejected))
    assert "gives away 3 slots, but the pool has 2" in data.reason


def test_a_plan_gives_no_more_servers_than_there_are_slots() -> None:
    pool = gpu_pool(1)
    first, second = (pool.submit(1, 1, min_servers=1, max_servers=2) for _ in range(2))
    (data,) = (data for data in pool.plan({first: Size(1, 1), second: Size(1, 1)}) if isinstance(data, PlanRejected))
    assert "gives away 2 servers, but the pool has 1 slots for them" in data.reason


def test_growth_and_shrinking_keep_the_kinds_apart() -> None:
    pool = gpu_pool()
    job = pool.submit(1, 2, min_servers=1, max_servers=2)
    pool.plan({job: Size(1, 1)})
    pool.settle(job)
    for size, slots in ((Size(2, 1), 3), (Size(2, 2), 4), (Size(1, 1), 2)):
        (data,) = (data for data in pool.plan({job: size}) if isinstance(data, RescaleRequested))
        assert (len(data.slots), data.servers) == (slots, size.servers)
        assert all(slot.startswith("a:1") and len(slot) > 3 for slot in data.slots[size.workers :])
        pool.settle(job)
    pool.step(ReleaseReported, job=job, attempt=1, slots=pool.job(job).draining)
    assert [slot.state for slot in pool.core.slots()] == ["leased", "free", "leased", "free"]


def test_growth_waits_for_the_kind_that_is_missing_alone() -> None:
    pool = gpu_pool()
    first = pool.submit(1, 1, min_servers=2, max_servers=2)
    pool.plan({first: Size(1, 2)})
    pool.settle(first)
    second = pool.submit(1, 1, min_servers=1, max_servers=1)
    assert not [data for data in pool.plan({first: Size(1, 2)}) if isinstance(data, JobStarted)]
    view = pool.core.view(pool.now)
    assert [job.job for job in view.jobs] == [first], "no policy sees who waits for a server's slot"
    said = pool.core._views.held_back
    assert said == {second: "needs 1 slot for servers, and 0 of 2 are left"}
    assert "1 slot and 1 slot for servers to start" in pool.core.explain(second, pool.now)
    third = pool.submit(1, 1)
    assert third in {job.job for job in pool.core.view(pool.now).jobs}, "who needs none is not held up"


def test_more_servers_than_the_pool_has_are_refused_at_once() -> None:
    pool = gpu_pool()
    with pytest.raises(BadRequest, match="2 slots for servers; ask for at most 2 servers"):
        pool.submit(1, 1, min_servers=3, max_servers=3)
    job = pool.submit(2, 2, min_servers=2, max_servers=2)  # four processes on two GPUs
    assert job
    with pytest.raises(BadRequest, match="the pool has 2 GPU slots"):
        pool.step(Resize, job=job, min_slots=3, max_slots=3)


def test_an_interactive_job_waits_for_its_servers_and_holds_nobody_up() -> None:
    pool = gpu_pool(1)
    first = pool.running(1)
    with_server = pool.submit(1, 1, min_servers=1, max_servers=1, interactive=True)
    assert pool.job(with_server).servers == 1
    waits = pool.submit(1, 1, min_servers=1, max_servers=1, interactive=True)
    assert pool.job(waits).phase == "queued"
    assert pool.core.view(pool.now).capacity == 2
    assert pool.job(first).phase == "running"


def test_a_drained_slot_for_servers_is_given_to_nobody() -> None:
    pool = gpu_pool()
    pool.step(DrainSlots, by="root", target="a:1000")
    assert (pool.core.state.server_capacity, pool.core.state.capacity) == (1, 2)
    job = pool.submit(1, 1, min_servers=1, max_servers=2)
    (view,) = pool.core.view(pool.now).jobs
    assert view.max_servers == 1
    pool.plan({job: Size(1, 1)})
    assert pool.job(job).slots == ("a:0", "a:1001")


def test_a_pool_whose_servers_take_gpus_goes_on_when_it_gets_slots_for_them() -> None:
    """As after an update: what runs keeps its slots, and the next start takes the new ones."""
    pool = Harness(GPUS)
    job = pool.submit(1, 1, min_servers=1, max_servers=1)
    pool.plan({job: Size(1, 1)})
    pool.settle(job)
    assert pool.job(job).slots == ("a:0", "a:1")
    pool.step(HostsReported, hosts=(with_servers(GPUS, 1),))
    assert pool.job(job).slots == ("a:0", "a:1")
    other = pool.submit(1, 1, min_servers=1, max_servers=1)
    events = pool.step(Propose, by="daemon", policy="fifo", plan=make_policy("fifo", {}).plan(pool.core.view(pool.now)))
    assert not [data for data in events if isinstance(data, PlanRejected | JobStarted)]
    assert pool.job(other).phase == "queued"


def servers(number: int, least: int, most: int, on: int = 0, **more: object) -> drawn.JobView:
    size = Size(on, most) if on else Size(0)
    return drawn.job(number, 1, 4, on, min_servers=least, max_servers=most, size=size, **more)


def test_what_is_left_is_offered_in_turn_and_the_running_keep_theirs() -> None:
    jobs = [servers(1, 1, 3), servers(2, 1, 2, on=1), drawn.job(3), servers(4, 2, 2), servers(5, 1, 1)]
    seen, said = within(jobs, 4)
    assert [(job.job, job.max_servers) for job in seen] == [(1, 2), (2, 2), (3, 0)]
    assert said == {
        4: "needs 2 slots for servers, and 1 of 4 are left", 5: "a job before it waits for slots for servers"
    }  # fmt: skip
    assert [job.server_cost for job in seen] == [0, 0, 1]
    seen, said = within(jobs, 100)
    assert [job.max_servers for job in seen] == [3, 2, 0, 2, 1]
    assert not said


def test_coach_tries_servers_when_every_gpu_is_taken() -> None:
    speeds = (Speed(workers=2, servers=1, samples_per_s=6.0), Speed(workers=1, servers=1, samples_per_s=5.5))
    profile = Profile(speeds=speeds, done=100.0, remaining=1e6, rescale_cost_s=0.5)
    job = drawn.job(1, 1, 2, on=2, min_servers=1, max_servers=3, profile=profile, server_cost=0)
    view = drawn.view(2, job, server_slots=3)
    size = make_policy("coach", {}).plan(view).sizes[1]
    assert size.workers == 2
    assert size.servers > 1
