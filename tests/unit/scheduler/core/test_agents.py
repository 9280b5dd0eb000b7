"""Which of a user's agents the orders belong to."""

from __future__ import annotations

import pytest

from jupyter_elastic.scheduler.core.agent_succession import objection
from jupyter_elastic.types import AgentChanged, AgentOrigin, AgentReported
from tests.support.harness import Harness, host

FIRST = AgentOrigin(place="first", home="a", description="host lab, pid:[1]")
RESTARTED = AgentOrigin(place="another container of the same folder", home="a")
STRANGER = AgentOrigin(place="elsewhere", home="b")


def with_first_agent(*, runs: bool, connected: bool) -> Harness:
    pool = Harness(host("a", 2))
    pool.step(AgentReported, connected=True, place=FIRST)
    if runs:
        pool.running(2)
    if not connected:
        pool.step(AgentReported, connected=False)
    return pool


def refused(pool: Harness, place: AgentOrigin | None, *, alone: bool = False, take_over: bool = False) -> str:
    return objection(pool.core.state, "ann", place, alone=alone, take_over=take_over)


def test_the_first_of_all_and_a_successor_in_the_same_place_are_welcome() -> None:
    assert refused(Harness(host("a", 2)), STRANGER) == ""
    for runs in (True, False):
        for connected in (True, False):
            assert refused(with_first_agent(runs=runs, connected=connected), FIRST) == ""


@pytest.mark.parametrize("place", [None, STRANGER, RESTARTED])
def test_elsewhere_it_is_refused_while_something_runs(place: AgentOrigin | None) -> None:
    for alone in (True, False):
        for take_over in (True, False):
            said = refused(with_first_agent(runs=True, connected=True), place, alone=alone, take_over=take_over)
            assert "another one (host lab, pid:[1]); it is connected, and only it can see what runs of job 1" in said


def test_it_takes_over_openly_when_the_first_is_gone() -> None:
    pool = with_first_agent(runs=True, connected=False)
    assert "jupyter elastic admin agent --take-over" in refused(pool, STRANGER, alone=True)
    assert "jupyter elastic admin agent --take-over" in refused(pool, RESTARTED)
    assert refused(pool, RESTARTED, alone=True) == ""
    assert refused(pool, STRANGER, take_over=True) == ""
    (data,) = pool.step(AgentReported, connected=True, place=RESTARTED)
    assert data == AgentChanged(user="ann", connected=True, place=RESTARTED)
    assert "the agent of ann is another one" in refused(pool, FIRST)


def test_nothing_runs() -> None:
    assert refused(with_first_agent(runs=False, connected=False), STRANGER) == ""
    assert "start this one with --take-over" in refused(with_first_agent(runs=False, connected=True), STRANGER)
    assert refused(with_first_agent(runs=False, connected=True), STRANGER, take_over=True) == ""


def test_where_an_agent_is_is_told_once() -> None:
    pool = with_first_agent(runs=False, connected=True)
    assert pool.step(AgentReported, connected=True, place=FIRST) == []
    assert pool.step(AgentReported, connected=False) == [AgentChanged(user="ann", connected=False)]
    assert pool.core.state.places["ann"] == FIRST
