"""Cells of a session run one after the other, whatever a policy says."""

from __future__ import annotations

import pytest

from jupyter_elastic.types import (
    Cancel,
    ExitReported,
    HoldEnded,
    HostsReported,
    JobEnded,
    JobStarted,
    RescaleRequested,
    Tick,
)
from jupyter_elastic.types.errors import BadRequest
from tests.support.harness import Harness, host


def seen(pool: Harness) -> list[int]:
    """The jobs that a policy is shown."""
    return [job.job for job in pool.core.view(pool.now).jobs]


def test_only_the_first_cell_of_a_session_is_shown_and_started() -> None:
    pool = Harness(host("a", 4))
    first, second = (pool.submit(1, 1, session="work") for _ in range(2))
    theirs, other = pool.submit(1, 1, session="work", by="bob"), pool.submit(1, 1, session="play")
    assert seen(pool) == [first, theirs, other]
    started = [
        data.job for data in pool.plan({first: 1, second: 1, theirs: 1, other: 1}) if isinstance(data, JobStarted)
    ]
    assert sorted(started) == [first, theirs, other]
    assert seen(pool) == [first, theirs, other]
    assert f"job {first} comes before it" in pool.core.explain(second, pool.now)


def test_the_next_cell_comes_when_the_one_before_it_is_over() -> None:
    pool = Harness(host("a", 4))
    first, second = (pool.submit(1, 1, session="work") for _ in range(2))
    pool.step(Cancel, job=first)
    assert seen(pool) == [second]
    assert pool.core.state.in_sessions == {second}


def test_an_interactive_cell_waits_for_its_session_too() -> None:
    pool = Harness(host("a", 4))
    first = pool.submit(1, 1, session="work")
    second = pool.submit(1, 1, session="work", interactive=True)
    assert pool.core.state.jobs[second].phase == "queued"
    pool.step(Cancel, job=first)
    assert pool.core.state.jobs[second].phase == "starting"


def test_a_cell_starts_on_the_host_of_its_sessions_workers_only() -> None:
    pool = Harness(host("a", 2), host("b", 3))
    remote_hosts = pool.running(2, 2, 2, host="b")
    cell, other = pool.submit(2, 2, session="work", host="b"), pool.submit(1, 1)
    started = [data for data in pool.plan({remote_hosts: 2, cell: 2, other: 1}) if isinstance(data, JobStarted)]
    assert [data.job for data in started] == [other]  # one slot of b and two of a were free
    text = pool.core.explain(cell, pool.now)
    assert "It waits for slots on b, where its session's workers are: 0 slots free there." in text
    pool.step(Cancel, job=remote_hosts)
    pool.step(ExitReported, job=remote_hosts, attempt=1, outcome="cancelled")
    (start,) = (data for data in pool.plan({cell: 2, other: 1}) if isinstance(data, JobStarted))
    assert {slot[0] for slot in start.slots} == {"b"}
    assert "Its session's workers are on b." in pool.core.explain(cell, pool.now)


def test_who_can_start_on_one_host_only_chooses_before_others_take_it() -> None:
    pool = Harness(host("a", 2), host("b", 2))
    first, cell = pool.submit(2, 2), pool.submit(2, 2, session="work", host="a")
    lost = pool.submit(1, 1, session="play", host="gone")
    with pytest.raises(BadRequest, match="all on a, which has 2 slots"):
        pool.submit(3, 3, session="large", host="a")
    started = {data.job: data.slots for data in pool.plan({first: 2, cell: 2}) if isinstance(data, JobStarted)}
    assert {job: slots[0][0] for job, slots in started.items()} == {first: "b", cell: "a"}
    pool.step(Cancel, job=first)
    pool.step(ExitReported, job=first, attempt=1, outcome="cancelled")
    assert [data.job for data in pool.plan({cell: 2, lost: 1}) if isinstance(data, JobStarted)] == [lost]


def test_a_cell_is_given_the_slots_that_its_session_was_on_where_they_are_free() -> None:
    pool = Harness(host("a", 4), host("b", 4))
    cell = pool.submit(2, 2, session="one", host="a", prefers=("a:3", "a:1"))
    (started,) = pool.plan({cell: 2})
    assert started.slots == ("a:3", "a:1")
    other = pool.submit(3, 3, session="two", host="a", prefers=("a:3", "a:2", "gone:0"))
    assert pool.plan({cell: 2, other: 3}) == []
    pool.settle(cell)
    another = pool.submit(2, 2, session="three", host="a", prefers=("a:3", "a:2"))
    (started,) = pool.plan({cell: 2, another: 2})
    assert started.slots == ("a:2", "a:0")


def test_a_cell_of_an_elastic_session_starts_with_the_workers_that_there_are_and_then_has_its_range() -> None:
    pool = Harness(host("a", 4), host("b", 4))
    cell = pool.submit(1, 8, session="work", begins=2, host="a")
    (seen_job,) = pool.core.view(pool.now).jobs
    assert (seen_job.min_slots, seen_job.max_slots) == (2, 2)
    (start,) = (data for data in pool.plan({cell: 2}) if isinstance(data, JobStarted))
    assert start.slots == ("a:0", "a:1")
    pool.settle(cell, elastic=True)
    (seen_job,) = pool.core.view(pool.now).jobs
    assert (seen_job.min_slots, seen_job.max_slots) == (1, 8)
    (grown,) = (data for data in pool.plan({cell: 8}) if isinstance(data, RescaleRequested))
    assert grown.slots == ("a:0", "a:1", "a:2", "a:3")  # its workers are on a
    pool.settle(cell, elastic=True)
    waits = pool.submit(1, 8, session="work", begins=2, host="a")
    fixed = pool.submit(2, 2, session="other", host="a")
    held(pool, cell)
    assert (pool.job(waits).spec.begins, pool.job(fixed).spec.begins) == (4, 0)
    with pytest.raises(BadRequest, match="can't start with 3 slots, outside of 1:2"):
        pool.submit(1, 2, session="work", begins=3)


def held(pool: Harness, cell: int, outcome: str = "completed") -> JobEnded:
    """End a cell, and say how."""
    attempt = pool.job(cell).attempt
    ends = pool.step(ExitReported, job=cell, attempt=attempt, outcome=outcome)
    (end,) = (data for data in ends if isinstance(data, JobEnded))
    return end


def test_slots_that_a_session_keeps_are_no_growth_of_jobs_that_run_until_the_time_is_over() -> None:
    pool = Harness(host("a", 4))
    elastic = pool.running(2, 1, 4)
    cell = pool.running(2, 2, 2, session="work", hold_s=30.0)
    assert held(pool, cell).held == 2
    until = pool.now + 30
    view = pool.core.view(pool.now)
    assert (view.hosts[0].capacity, view.hosts[0].free) == (2, 0)
    assert pool.plan({elastic: 4}) == []  # a policy that was asked before
    assert pool.core.next_wakeup(pool.now) == until
    (info,) = pool.core.jobs(job=cell)
    assert (info.held, info.held_until) == (2, until)
    pool.now = until - 1
    assert pool.step(Tick) == [HoldEnded(job=cell)]
    assert pool.core.wants_plan
    assert pool.core.next_wakeup(pool.now) is None
    assert pool.core.view(pool.now).hosts[0].free == 2
    assert len(pool.plan({elastic: 4})) == 1


def test_whoever_waits_gets_the_slots_of_a_session_at_once() -> None:
    pool = Harness(host("a", 2))
    cell = pool.running(2, 2, 2, session="work", hold_s=30.0)
    held(pool, cell)
    other = pool.submit(1, 1, by="bob")
    assert pool.events[-1].data == HoldEnded(job=cell, reason=f"job {other} waits for slots")
    assert pool.core.view(pool.now).hosts[0].free == 2
    assert [type(data) for data in pool.plan({other: 1})] == [JobStarted]


def test_a_session_keeps_nothing_where_somebody_waits_already_and_for_its_own_next_cell() -> None:
    pool = Harness(host("a", 2))
    cell = pool.running(2, 2, 2, session="work", hold_s=30.0)
    following = pool.submit(2, 2, session="work", hold_s=30.0)
    held(pool, cell)
    assert pool.events[-1].data == HoldEnded(job=cell, reason=f"job {following} waits for slots")
    pool.plan({following: 2})
    pool.settle(following)
    assert held(pool, following, "failed").held == 2  # its variables are there
    pool.step(Tick)
    assert pool.core.state.retaining == {following}


@pytest.mark.parametrize(
    ("outcome", "given"),
    [("completed", {"session": "work"}), ("completed", {"hold_s": 30.0})],
)
def test_nothing_is_kept_unless_a_session_asks(outcome: str, given: dict[str, object]) -> None:
    pool = Harness(host("a", 2))
    assert held(pool, pool.running(2, 2, 2, **given), outcome).held == 0


def test_a_cell_that_is_cancelled_or_has_not_run_keeps_nothing() -> None:
    pool = Harness(host("a", 2))
    cell = pool.running(2, 2, 2, session="work", hold_s=30.0)
    pool.step(Cancel, job=cell)
    assert held(pool, cell, "cancelled").held == 0
    early = pool.submit(2, 2, session="work", hold_s=30.0)
    pool.plan({early: 2})
    assert held(pool, early, "failed").held == 0


def test_slots_that_a_session_keeps_may_be_lost_with_their_host() -> None:
    pool = Harness(host("a", 2), host("b", 1))
    held(pool, pool.running(2, 2, 2, session="work", hold_s=30.0))
    pool.step(HostsReported, hosts=(host("b", 1),))
    view = pool.core.view(pool.now)
    assert [(one.capacity, one.free) for one in view.hosts] == [(0, 0)]
    assert pool.plan({}) == []
