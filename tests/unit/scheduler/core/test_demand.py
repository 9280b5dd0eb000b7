"""How many more slots the queue could use, by the policies of the package."""

from __future__ import annotations

import pytest

from jupyter_elastic.scheduler import policies
from jupyter_elastic.scheduler.core import Caps, demand
from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.types import Host, Slot
from tests.support.harness import Harness, host

TO_COME = Host(name="z", kind="cpu", slots=tuple(Slot(index=i, out="could be brought") for i in range(20)))
"""A pool takes no job that is larger than it could ever be."""


def wished(pool: Harness, at_most: int, policy: str = policies.DEFAULT) -> int:
    view = pool.core.view(pool.now)
    plan = plugins.make_policy(policy, {}).plan(demand.with_room(view, at_most))
    return demand.unmet(view, plan, at_most)


@pytest.mark.parametrize("policy", ["fifo", "elastic_fifo", "fair", "srtf", "las"])
def test_a_job_that_waits_wishes_for_its_slots_and_an_empty_queue_for_none(policy: str) -> None:
    pool = Harness(host("a", 2), TO_COME)
    assert wished(pool, 10, policy) == 0
    pool.running(2, 2, 2)
    assert wished(pool, 10, policy) == 0
    pool.submit(4, 4)
    assert wished(pool, 10, policy) == 4
    assert wished(pool, 4, policy) == 4
    assert wished(pool, 3, policy) == 0  # so few would not let it start


def test_a_job_that_could_grow_wishes_as_far_as_its_range_goes() -> None:
    pool = Harness(host("a", 1), TO_COME)
    pool.running(1, 1, 4)
    pool.now += 1000
    assert wished(pool, 10, "elastic_fifo") == 3
    assert wished(pool, 2, "elastic_fifo") == 2


def test_a_job_that_cannot_grow_wishes_for_nothing() -> None:
    pool = Harness(host("a", 1), TO_COME)
    job = pool.submit(1, 4)
    pool.plan({job: 1})
    pool.settle(job, elastic=False)
    pool.now += 1000
    assert wished(pool, 10, "elastic_fifo") == 0


def test_free_slots_are_used_before_any_is_wished_for() -> None:
    pool = Harness(host("a", 3), TO_COME)
    pool.submit(2, 2)
    assert wished(pool, 10) == 0
    pool.submit(2, 2)
    assert wished(pool, 10) == 1


def test_who_may_hold_no_more_wishes_for_nothing() -> None:
    pool = Harness(host("a", 1), TO_COME, most=Caps(users={"ann": 2}))
    pool.submit(2, 2)
    pool.submit(2, 2)
    assert wished(pool, 10) == 1


def test_a_pool_without_slots_can_wish() -> None:
    pool = Harness(TO_COME)
    pool.submit(2, 2)
    assert wished(pool, 4) == 2
