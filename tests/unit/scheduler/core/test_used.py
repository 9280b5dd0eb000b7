"""What was used decays, follows from the events alone, and is not lost when the half-life changes."""

from __future__ import annotations

from math import log

import msgspec
import pytest

from jupyter_elastic.scheduler.core import State
from jupyter_elastic.scheduler.core.used import UsedSlots
from jupyter_elastic.types import Event, ExitReported, UsePolicy
from tests.support.harness import Harness, host


def used(pool: Harness, at: float, owner: str = "ann", group: str = "") -> float:
    return pool.core.view(at).used[group][owner]


def pool_with(half_life_s: float) -> Harness:
    pool = Harness(host("a", 4))
    pool.step(UsePolicy, name="fair", options={"half_life_s": half_life_s})
    return pool


def end(pool: Harness, job: int) -> float:
    pool.step(ExitReported, job=job, attempt=1, outcome="completed")
    return pool.now


def test_what_was_used_one_half_life_ago_counts_half() -> None:
    pool = pool_with(1000.0)
    job = pool.running(2)
    ended = end(pool, job)
    before = used(pool, ended)
    assert before == pytest.approx(2 * (ended - pool.core.state.ended[job].started_at), rel=1e-3)
    assert used(pool, ended + 1000.0) == pytest.approx(before / 2)
    assert used(pool, ended + 3000.0) == pytest.approx(before / 8)


def test_who_holds_slots_for_ever_comes_to_what_is_used_in_a_half_life_over_log_2() -> None:
    pool = pool_with(10.0)
    pool.running(3)
    assert used(pool, pool.now + 10_000.0) == pytest.approx(3 * 10.0 / log(2.0))


def test_it_does_not_matter_how_often_it_is_counted() -> None:
    often, once = UsedSlots(slot_s=7.0, at=100.0), UsedSlots(slot_s=7.0, at=100.0)
    once.add(4, 100.0, 160.0, 50.0)
    for at in (100.0, 115.0, 130.0, 145.0):
        often.add(4, at, at + 15.0, 50.0)
    assert once.slot_s == pytest.approx(often.slot_s)
    assert once.slot_s == pytest.approx(7.0 * 2 ** (-60 / 50) + 4 * 50.0 / log(2.0) * (1 - 2 ** (-60 / 50)))


def test_a_restart_gives_the_same_by_replay_and_by_snapshot() -> None:
    pool = pool_with(300.0)
    pool.running(2)
    pool.running(1, by="bob", group="lab")
    pool.now += 77
    end(pool, 1)
    replayed = Harness()
    for event in pool.events:
        replayed.core.fold(msgspec.json.decode(msgspec.json.encode(event), type=Event))
    assert replayed.core.state == pool.core.state
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(pool.core.state), type=State)
    assert kept == pool.core.state
    assert kept.half_life_s == 300.0
    assert pool.core.view(pool.now + 5).used.keys() == {"", "lab"}


def test_another_half_life_counts_from_its_change_on() -> None:
    pool = pool_with(1000.0)
    ended = end(pool, pool.running(2))
    pool.now = ended + 999.0
    pool.step(UsePolicy, name="fair", options={"half_life_s": 10.0})
    half = used(pool, ended + 1000.0)
    assert used(pool, ended + 1010.0) == pytest.approx(half / 2)
    assert half == pytest.approx(used(pool_with_same(ended), ended + 1000.0))


def pool_with_same(ended: float) -> Harness:
    """The same pool without the change."""
    pool = pool_with(1000.0)
    assert end(pool, pool.running(2)) == ended
    return pool
