"""A flood of refusals is few events, and none is forgotten."""

from __future__ import annotations

from jupyter_elastic.scheduler.journal.refusals import KINDS, USERS, Refusals


def flood(refusals: Refusals, seconds: int, *, users: int = 1, kinds: int = 1, a_second: int = 20) -> list[int]:
    """The counts of what is told while somebody is refused all the time."""
    told = []
    for second in range(seconds):
        for user in range(users):
            for kind in range(kinds):
                for _ in range(a_second):
                    refusals.add(f"u{user}", f"ask {kind}", "not_allowed", "no", None, second)
        told += [one.count for one in refusals.due(second)]
    return told


def test_the_first_is_told_at_once_and_an_hour_of_them_is_seven_events() -> None:
    refusals = Refusals()
    told = flood(refusals, 3600)
    assert told == [20, 60 * 20, 120 * 20, 240 * 20, 480 * 20, 960 * 20]
    told += [one.count for one in refusals.due(float("inf"))]
    assert sum(told) == 3600 * 20


def test_many_kinds_and_many_users_are_counted_together() -> None:
    refusals = Refusals()
    assert len(flood(refusals, 1, kinds=500, a_second=1)) == KINDS + 1
    refusals = Refusals()
    told = flood(refusals, 1, users=USERS + 500, a_second=1)
    assert len(told) == USERS + 1
    assert sum(told) == USERS + 500


def test_what_is_told_is_the_last_of_its_kind_and_after_a_silence_it_begins_anew() -> None:
    refusals = Refusals()
    refusals.add("eve", "CancelJob", "not_allowed", "job 1 belongs to ada", 1, 0.0)
    refusals.add("eve", "CancelJob", "not_allowed", "job 2 belongs to ada" + "x" * 1000, 2, 0.0)
    refusals.add("eve", "Drain", "not_allowed", "no", None, 0.0)
    first, second = refusals.due(0.0)
    assert (first.user, first.ask, first.count, first.about, len(first.message)) == ("eve", "CancelJob", 2, 2, 500)
    assert (second.ask, second.count) == ("Drain", 1)
    assert refusals.due(59.0) == []
    assert refusals.due(60.0) == []
    refusals.add("eve", "CancelJob", "not_allowed", "job 1 belongs to ada", 1, 61.0)
    assert [one.count for one in refusals.due(61.0)] == [1]
