"""A cell without an elastic loop keeps the size that it started with; it can only be stopped as a whole."""

from __future__ import annotations

import pytest

from jupyter_elastic.types import PlanRejected, StopRequested
from tests.support.books import Books, host


@pytest.mark.xfail(reason="a running plain cell loses ranks when a colleague comes")
def test_no_plan_changes_the_size_of_a_cell_without_an_elastic_loop() -> None:
    books = Books(host("a", 3))
    job = books.submit(1, 3)
    books.plan({job: 2})
    books.settle(job)
    for size in (1, 3):
        (refused,) = books.plan({job: size})
        assert isinstance(refused, PlanRejected)
        assert books.job(job).slots == ("a:0", "a:1")
    (view,) = books.core.view(books.now).jobs
    assert (view.min_slots, view.max_slots) == (2, 2)
    assert books.plan({job: 2}) == []
    (stopped,) = books.plan({})
    assert isinstance(stopped, StopRequested)
