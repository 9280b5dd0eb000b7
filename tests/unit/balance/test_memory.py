"""What is remembered of hosts and links between trainings."""

from __future__ import annotations

import math

import msgspec

from jupyter_elastic.balance.memory import (
    KEPT_S,
    Memory,
    bandwidth_of,
    speeds_of,
    with_links,
    with_speeds,
)

HOSTS = ("a", "b", "c")
LINKS = ((0.0, 1e6, 2e6), (3e6, 0.0, 4e6), (5e6, 0.0, 0.0))


def test_what_was_measured_is_known_for_the_same_workload_and_any_of_the_hosts():
    memory = with_speeds(Memory(), "digits", HOSTS, (1.0, 2.0, 3.0), 100.0)
    assert speeds_of(memory, "digits", ("c", "a"), 101.0) == (3.0, 1.0)
    assert speeds_of(memory, "letters", ("c", "a"), 101.0) is None
    assert speeds_of(memory, "digits", ("a", "d"), 101.0) is None
    memory = with_speeds(memory, "digits", ("b",), (9.0,), 200.0)
    assert speeds_of(memory, "digits", HOSTS, 201.0) == (1.0, 9.0, 3.0)
    assert len(memory.speeds) == 3


def test_links_are_known_when_all_are_whatever_the_order():
    memory = with_links(Memory(), HOSTS, LINKS, 100.0)
    assert bandwidth_of(memory, HOSTS, 100.0) == LINKS
    assert bandwidth_of(memory, ("c", "a"), 100.0) == ((0.0, 5e6), (2e6, 0.0))
    assert bandwidth_of(memory, ("a", "d"), 100.0) is None
    assert bandwidth_of(with_links(memory, ("a", "b"), ((0, 7.0), (8.0, 0)), 101.0), ("b", "a"), 102.0) == (
        (0.0, 8.0),
        (7.0, 0.0),
    )


def test_old_figures_and_those_of_a_time_to_come_are_not_believed():
    memory = with_links(with_speeds(Memory(), "w", ("a", "b"), (1.0, 2.0), 100.0), ("a", "b"), ((0, 1), (1, 0)), 100.0)
    for now, known in ((100.0, True), (100.0 + KEPT_S, True), (101.0 + KEPT_S, False), (99.0, False)):
        assert (speeds_of(memory, "w", ("a", "b"), now) is not None) == known
        assert (bandwidth_of(memory, ("a", "b"), now) is not None) == known


def test_no_figure_that_a_plan_would_refuse_is_kept_or_given():
    memory = with_speeds(Memory(), "w", ("a", "b", "c"), (math.inf, 0.0, math.nan), 0.0)
    assert memory.speeds == ()
    assert with_links(Memory(), ("a", "b"), ((0, math.nan), (math.inf, 0)), 0.0).links == ()
    forged = msgspec.convert({"speeds": [{"value": 0, "at": 0, "workload": "w", "host": "a"}]}, Memory)
    assert speeds_of(forged, "w", ("a",), 0.0) is None


def test_the_newest_are_kept(monkeypatch):
    monkeypatch.setattr("jupyter_elastic.balance.memory.MAX_ENTRIES", 20)
    memory = Memory()
    for number in range(50):
        memory = with_speeds(memory, "w", [str(number)], [1.0], 0.0)
    assert [one.host for one in memory.speeds] == [str(number) for number in range(30, 50)]
    assert len(with_links(memory, HOSTS * 2, [[1.0] * 6] * 6, 0.0).links) == 20
