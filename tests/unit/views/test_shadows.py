"""Policies that are asked beside the active one: what they say, since when, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jupyter_elastic.protocol import wire
from jupyter_elastic.types import View
from jupyter_elastic.types.errors import BadRequest, NotFound
from jupyter_elastic.views.forecasts import MAX_SHADOWS, Shadows
from tests.unit.scheduler.policies.pool import job, view

CROWDED = view(2, job(1, 1, 2, on=2), job(2))
SETTLED = view(2, job(1, 1, 2, on=1), job(2, on=1))


def look(shadows: Shadows, *seen: View) -> None:
    async def go() -> None:
        for now in seen:

            async def ask(question: wire.AnyAsk, now: View = now) -> wire.AnyAnswer:
                assert isinstance(question, wire.ReadView)
                return wire.PoolView(view=now, policy="fifo")

            await shadows.renew(ask)

    asyncio.run(go())


def test_it_says_where_it_differs_how_often_and_since_when() -> None:
    shadows = Shadows()
    shadows.begin("elastic_fifo")
    look(shadows, SETTLED)
    assert (shadows.rows[0].asked, shadows.rows[0].differs_since, shadows.rows[0].differences) == (1, None, [])
    look(shadows, CROWDED)
    first = shadows.rows[0].differs_since
    look(shadows, CROWDED)
    (row,) = shadows.rows
    assert (row.asked, row.differed, row.jobs, row.total_differences) == (3, 2, 2, 2)
    assert row.differs_since == first is not None
    assert [(one.job, one.holds, one.shadow) for one in row.differences] == [(1, 2, 1), (2, 0, 1)]
    look(shadows, SETTLED)
    assert (shadows.rows[0].differs_since, shadows.rows[0].total_differences) == (None, 0)


def test_a_cell_s_policy_keeps_its_memo_and_its_mistakes_are_said() -> None:
    shadows = Shadows()
    source = """
from jupyter_elastic.types import Plan, Size
def plan(view):
    count = (view.memo or 0) + 1
    if count == 3:
        return {99: 1}
    return Plan(sizes={1: Size(1), 2: Size(1)} if count == 2 else {1: Size(2)}, memo=count)
"""
    shadows.begin("mine", source=source)
    look(shadows, CROWDED)
    assert (shadows.rows[0].cell, shadows.rows[0].total_differences) == (True, 0)
    look(shadows, CROWDED)
    assert shadows.rows[0].total_differences == 2
    look(shadows, CROWDED)
    assert "no unfinished job 99" in shadows.rows[0].problem
    assert (shadows.rows[0].asked, shadows.rows[0].differences) == (2, [])


def test_they_are_asked_when_something_happened_and_not_all_the_time() -> None:
    shadows = Shadows()
    assert not shadows.due(7)
    shadows.begin("fifo")
    assert shadows.due(7)
    look(shadows, CROWDED)
    assert not shadows.due(7)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"name": "nosuch"}, NotFound, "there is no policy 'nosuch'"),
        ({"name": "las", "options": {"nonsense": 1}}, BadRequest, "nonsense"),
        ({"name": "mine", "source": "x = 1"}, BadRequest, r"define plan\(view\)"),
    ],
)
def test_what_is_no_policy_is_refused(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    shadows = Shadows()
    with pytest.raises(error, match=says):
        shadows.begin(**arguments)
    assert shadows.rows == []


def test_there_are_only_so_many() -> None:
    shadows = Shadows()
    for name in ("fifo", "elastic_fifo", "las", "srtf", "fair")[:MAX_SHADOWS]:
        shadows.begin(name)
    with pytest.raises(BadRequest, match="end one of fifo"):
        shadows.begin("afs")
    shadows.end("fifo")
    with pytest.raises(NotFound, match="fifo is no shadow"):
        shadows.end("fifo")


@pytest.mark.parametrize("ends", ["raise SystemExit(3)", "raise KeyboardInterrupt", "import sys; sys.exit('no')"])
def test_a_policy_that_ends_whoever_asks_it_ends_no_thread(ends: str) -> None:
    shadows = Shadows()
    shadows.begin("mine", source=f"def plan(view):\n    {ends}")
    look(shadows, CROWDED)
    assert "plan(view) raised" in shadows.rows[0].problem
