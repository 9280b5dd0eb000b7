"""On which hosts a job may get slots: labels, kinds of GPU, and hosts that end."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_elastic.scheduler.core.react import outstanding
from jupyter_elastic.scheduler.core.rules import suitable
from jupyter_elastic.types import (
    DrainsChanged,
    Host,
    HostsReported,
    ReleaseReported,
    RescaleRequested,
    StopRequested,
    Tick,
)
from jupyter_elastic.types.errors import BadRequest
from tests.support.harness import Harness, host

A100, V100 = {"gpu": "NVIDIA A100-SXM4-80GB"}, {"gpu": "Tesla V100"}


def gpus(name: str, count: int, labels: dict[str, str]) -> Host:
    return host(name, count, kind="gpu", labels=labels)


def on(pool: Harness, job: int) -> set[str]:
    return {slot.rpartition(":")[0] for slot in pool.job(job).slots}


@pytest.mark.parametrize("wanted", ["a100", "A100", "NVIDIA A100-SXM4-80GB", "80gb"])
def test_a_label_is_met_by_its_text_or_a_word_of_it(wanted: str) -> None:
    assert suitable.means(A100["gpu"], wanted)
    assert not suitable.means(V100["gpu"], wanted)


def test_a_job_gets_slots_where_its_labels_are_and_waits_for_them_there() -> None:
    pool = Harness(gpus("v", 4, V100), gpus("a", 2, A100 | {"rack": "3"}))
    first = pool.submit(2, 2, on={"gpu": "A100", "rack": "3"})
    second = pool.submit(1, 1, on={"gpu": "A100"})
    pool.plan({first: 2, second: 1})
    assert on(pool, first) == {"a"}
    assert pool.job(second).phase == "queued"
    said = pool.core.explain(second, pool.now)
    assert not pool.core.until(second, pool.now)
    assert "It can get slots with gpu=A100 on 1 of 2 hosts: 0 slots free there." in said


def test_one_kind_of_gpu_a_job_unless_it_says_any() -> None:
    pool = Harness(gpus("v", 2, V100), gpus("a", 3, A100))
    job = pool.submit(1, 5)
    pool.plan({job: 5})
    assert (on(pool, job), len(pool.job(job).slots)) == ({"a"}, 3)
    pool.settle(job)
    assert pool.plan({job: 5})[1:] == []  # it does not grow onto another kind
    any_kind = Harness(gpus("v", 2, V100), gpus("a", 3, A100))
    job = any_kind.submit(1, 5, on={"gpu": "any"})
    any_kind.plan({job: 5})
    assert on(any_kind, job) == {"v", "a"}


def test_a_job_stays_with_its_kind_when_it_grows() -> None:
    pool = Harness(gpus("v", 2, V100), gpus("a", 3, A100))
    job = pool.submit(1, 5, on={"gpu": "V100"})
    pool.plan({job: 1})
    pool.settle(job)
    pool.plan({job: 5})
    assert (on(pool, job), len(pool.job(job).slots)) == ({"v"}, 2)


def test_slots_that_one_job_may_have_alone_are_not_given_to_others_first() -> None:
    pool = Harness(gpus("v", 1, V100), gpus("a", 1, A100))
    other = pool.submit(1, 1)
    picky = pool.submit(1, 1, on={"gpu": "V100"})
    pool.plan({other: 1, picky: 1})
    assert {len(pool.job(job).slots) for job in (other, picky)} <= {0, 1}
    assert on(pool, picky) in (set(), {"v"})


def test_labels_that_no_host_has_are_refused_with_those_that_there_are() -> None:
    pool = Harness(gpus("a", 2, A100))
    with pytest.raises(
        BadRequest, match="hosts with gpu=H100 have 0 slots, and you asked for 1; labels in this pool: "
    ):
        pool.submit(1, 1, on={"gpu": "H100"})
    with pytest.raises(BadRequest, match="have 2 slots, and you asked for 3"):
        pool.submit(3, 3, on={"gpu": "A100"})


def test_a_job_whose_workers_find_each_other_on_one_host_only_keeps_to_one() -> None:
    pool = Harness(host("a", 2), host("b", 3), host("c", 2))
    job, fixed = pool.submit(1, 5, one_host=True), pool.submit(2, 2, one_host=True)
    pool.plan({job: 2})
    pool.settle(job)
    assert on(pool, job) == {"b"}  # where most were free
    other = pool.submit(2, 2)
    pool.plan({job: 4, other: 2})
    pool.settle(job)
    assert (on(pool, job), len(pool.job(job).slots)) == ({"b"}, 3)
    pool.plan({job: 3, other: 2, fixed: 2})
    assert len(on(pool, fixed)) == len(on(pool, other)) == 1
    last = pool.submit(2, 2, one_host=True)
    assert "on 1 of 3 hosts: 0 slots free there; its workers find each other on one host only." in pool.core.explain(
        last, pool.now
    )
    with pytest.raises(BadRequest, match="one host only, and none has more than 3 slots; ask for at most 3"):
        pool.submit(4, 4, one_host=True)
    assert Harness(host("a", 5)).submit(4, 4, one_host=True)


def test_a_job_that_can_run_on_one_host_only_waits_there_or_begins_with_what_is_free() -> None:
    pool = Harness(host("a", 2), host("b", 3))
    job = pool.submit(1, 5, host="a")
    pool.plan({job: 4})
    assert (on(pool, job), len(pool.job(job).slots)) == ({"a"}, 2)
    assert "It runs on a only." in pool.core.explain(job, pool.now)
    other = pool.submit(1, 1, host="a")
    assert "It waits for slots on a, the only host for it: 0 slots free there." in pool.core.explain(other, pool.now)
    with pytest.raises(BadRequest, match="the workers of this cell are all on a, which has 2 slots"):
        pool.submit(3, 3, host="a")


def test_a_host_that_ends_takes_no_job_of_a_fixed_size_that_says_it_takes_longer() -> None:
    pool = Harness(host("ends", 4, until=10_000.0), host("stays", 1))
    long = pool.submit(2, 2, max_time_s=20_000.0)
    short = pool.submit(2, 2, estimate_s=600.0, max_time_s=20_000.0)
    can_shrink = pool.submit(1, 2, max_time_s=20_000.0)
    pool.plan({long: 2, short: 2, can_shrink: 1})
    assert pool.job(long).phase == "queued"
    assert on(pool, short) == {"ends"}
    assert pool.job(can_shrink).phase == "starting"
    assert "ends would end before it" in pool.core.explain(long, pool.now)


def test_jobs_leave_a_host_before_it_ends_and_nothing_new_comes() -> None:
    pool = Harness(host("ends", 2, until=1000.0), host("stays", 1))
    elastic = pool.submit(1, 2)
    pool.plan({elastic: 2})
    pool.settle(elastic)
    rigid = pool.submit(1, 1)
    pool.plan({elastic: 2, rigid: 1})
    pool.settle(rigid, elastic=False)
    assert pool.core.next_wakeup(pool.now) == 880.0
    pool.now = 878.0
    assert pool.step(Tick, by="daemon") == []
    events = pool.step(Tick, by="daemon")
    assert [type(data) for data in events][:1] == [DrainsChanged]
    events += pool.step(Tick, by="daemon")
    moved = [data for data in events if isinstance(data, RescaleRequested | StopRequested)]
    assert moved  # who is there leaves, or has until half a minute before the end
    assert pool.core.view(pool.now).hosts[0].free == 0
    pool.now = 969.0
    pool.step(Tick, by="daemon")
    assert pool.job(rigid).phase != "running" or on(pool, rigid) == {"stays"}
    assert "its time is nearly over" in pool.core.slots()[0].drained
    pool.step(HostsReported, by="daemon", hosts=(host("ends", 2, until=9000.0), host("stays", 1)))
    assert not pool.core.state.drains  # it got more time


def test_who_can_not_reach_a_host_gets_nothing_there_and_keeps_nobody_waiting() -> None:
    def hosts(**lab2: Any) -> tuple[Host, ...]:
        return host("lab1", 1), host("lab2", 2, url="ssh://lab2", local_users=True, **lab2)

    pool = Harness(*hosts())
    anns, bobs = pool.submit(1, 3, uid=1), pool.submit(2, 2, by="bob", uid=2)
    pool.plan({anns: 3})
    pool.settle(anns)
    assert on(pool, anns) == {"lab1", "lab2"}
    assert outstanding(pool.core.state, "ann")[0].remote_hosts == ("lab2",)
    (_, shrinks) = pool.step(HostsReported, hosts=hosts(unreachable={"ann": "Permission denied (publickey)"}))
    assert isinstance(shrinks, RescaleRequested)
    assert shrinks.slots == ("lab1:0",)
    assert "Permission denied (publickey)" in shrinks.reason
    pool.step(ReleaseReported, by="ann", job=anns, attempt=1, slots=("lab2:0", "lab2:1"))
    shown = {job.job: job for job in pool.core.view(pool.now).jobs}
    assert (shown[anns].max_slots, shown[bobs].max_slots) == (1, 2), "a plan gives nobody what he can't have"
    assert pool.plan({anns: 1, bobs: 2})[-1].slots == ("lab2:0", "lab2:1")
    waits = pool.submit(2, 2, uid=1)
    assert waits not in [job.job for job in pool.core.view(pool.now).jobs], "no plan waits for slots that it can't have"
    assert "ann can't reach lab2 now: Permission denied (publickey)." in pool.core.explain(waits, pool.now)
    assert "Permission" not in pool.core.explain(waits, pool.now, whole=False)
    pool.step(HostsReported, hosts=hosts())
    assert waits in [job.job for job in pool.core.view(pool.now).jobs]


def test_who_comes_by_a_key_gets_nothing_on_hosts_that_are_for_users_of_the_pools_machine() -> None:
    pool = Harness(host("lab1", 1), host("lab2", 2, url="ssh://lab2", local_users=True))
    hers, large = pool.submit(1, 3), pool.submit(2, 2)
    pool.plan({hers: 3})
    assert pool.job(hers).slots == ("lab1:0",)
    assert large not in [job.job for job in pool.core.view(pool.now).jobs]
    assert "comes by a key" in pool.core.explain(large, pool.now)
