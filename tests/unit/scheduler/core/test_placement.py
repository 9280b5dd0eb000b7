"""Sizes to slots."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jupyter_elastic.scheduler.core.placement import Free, keep


def free(**hosts: int) -> Free:
    return Free((name, f"{name}:{index}") for name, count in hosts.items() for index in range(count))


def test_one_host_with_the_least_leftover() -> None:
    assert free(a=4, b=2, c=3).take(2) == ("b:0", "b:1")
    assert free(a=4, b=2, c=3).take(3) == ("c:0", "c:1", "c:2")
    assert free(a=4, b=4).take(1) == ("a:0",)


def test_no_host_is_large_enough_then_as_few_as_possible() -> None:
    assert free(a=2, b=4, c=1).take(5) == ("b:0", "b:1", "b:2", "b:3", "c:0")


def test_a_growing_job_stays_where_it_is() -> None:
    assert free(a=1, b=1, c=1).take(1, near=["b", "b", "a"]) == ("b:0",)
    assert free(a=1, b=1, c=4).take(3, near=["b"]) == ("b:0", "c:0", "c:1")
    assert free(a=1).take(1, near=["gone"]) == ("a:0",)


def test_what_is_taken_is_gone_and_no_more_than_there_is() -> None:
    pool = free(a=2, b=1)
    assert len(pool.take(2)) == 2
    assert len(pool) == 1
    assert pool.take(9) == ("b:0",)
    assert pool.take(1) == ()


def test_a_shrinking_job_leaves_the_host_where_it_has_least_and_keeps_its_oldest() -> None:
    held, hosts = ("a:0", "b:0", "b:1", "c:0"), ("a", "b", "b", "c")
    assert keep(held, hosts, 3) == ("a:0", "b:0", "b:1")
    assert keep(held, hosts, 2) == ("b:0", "b:1")
    assert keep(held, hosts, 1) == ("b:0",)
    assert keep(held, hosts, 4) == held


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), st.data())
def test_what_is_kept_is_a_part_in_order_on_no_more_hosts_than_needed(hosts: list[str], data: st.DataObject) -> None:
    held = tuple(f"{host}:{index}" for index, host in enumerate(hosts))
    count = data.draw(st.integers(1, len(held)))
    kept = keep(held, hosts, count)
    assert len(kept) == count
    assert kept == tuple(slot for slot in held if slot in set(kept))
    sizes = sorted((hosts.count(host) for host in set(hosts)), reverse=True)
    fewest = next(n for n in range(1, len(sizes) + 1) if sum(sizes[:n]) >= count)
    assert len({slot.split(":")[0] for slot in kept}) == fewest
