"""Which of a user's agents the orders belong to."""

from __future__ import annotations

import pytest

from jupyter_elastic.scheduler.core.agents import objection
from jupyter_elastic.types import AgentChanged, AgentPlace, AgentReported
from tests.support.books import Books, host

FIRST = AgentPlace(place="first", home="a", description="host lab, pid:[1]")
RESTARTED = AgentPlace(place="another container of the same folder", home="a")
STRANGER = AgentPlace(place="elsewhere", home="b")


def pool(*, runs: bool, connected: bool) -> Books:
    books = Books(host("a", 2))
    books.step(AgentReported, connected=True, place=FIRST)
    if runs:
        books.running(2)
    if not connected:
        books.step(AgentReported, connected=False)
    return books


def refused(books: Books, place: AgentPlace | None, *, alone: bool = False, take_over: bool = False) -> str:
    return objection(books.core.state, "ann", place, alone=alone, take_over=take_over)


def test_the_first_of_all_and_a_successor_in_the_same_place_are_welcome() -> None:
    assert refused(Books(host("a", 2)), STRANGER) == ""
    for runs in (True, False):
        for connected in (True, False):
            assert refused(pool(runs=runs, connected=connected), FIRST) == ""


@pytest.mark.parametrize("place", [None, STRANGER, RESTARTED])
def test_elsewhere_it_is_refused_while_something_runs(place: AgentPlace | None) -> None:
    for alone in (True, False):
        for take_over in (True, False):
            said = refused(pool(runs=True, connected=True), place, alone=alone, take_over=take_over)
            assert "another one (host lab, pid:[1]); it is connected, and only it can see what runs of job 1" in said


def test_it_takes_over_openly_when_the_first_is_gone() -> None:
    books = pool(runs=True, connected=False)
    assert "jupyter elastic agent --take-over" in refused(books, STRANGER, alone=True)
    assert "jupyter elastic agent --take-over" in refused(books, RESTARTED)
    assert refused(books, RESTARTED, alone=True) == ""
    assert refused(books, STRANGER, take_over=True) == ""
    (data,) = books.step(AgentReported, connected=True, place=RESTARTED)
    assert data == AgentChanged(user="ann", connected=True, place=RESTARTED)
    assert "the agent of ann is another one" in refused(books, FIRST)


def test_nothing_runs() -> None:
    assert refused(pool(runs=False, connected=False), STRANGER) == ""
    assert "start this one with --take-over" in refused(pool(runs=False, connected=True), STRANGER)
    assert refused(pool(runs=False, connected=True), STRANGER, take_over=True) == ""


def test_where_an_agent_is_is_told_once() -> None:
    books = pool(runs=False, connected=True)
    assert books.step(AgentReported, connected=True, place=FIRST) == []
    assert books.step(AgentReported, connected=False) == [AgentChanged(user="ann", connected=False)]
    assert books.core.state.places["ann"] == FIRST
