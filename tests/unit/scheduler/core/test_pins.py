"""A session whose memory can't leave the devices keeps its slots, and nobody else gets them before it is gone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_elastic.scheduler.core.react import outstanding
from jupyter_elastic.types import (
    AnyEventData,
    Cancel,
    DrainSlots,
    ExitReported,
    Forget,
    HostsReported,
    JobEnded,
    JobStarted,
    Launch,
    ReleaseReported,
    SlotsReleased,
    Stop,
    StopRequested,
    UnpinRequested,
    WatchRetention,
)
from tests.support.harness import Harness, host

WHY = "its memory can't leave the device"


def ended(pool: Harness, job: int, outcome: str = "completed", **changes: Any) -> list[AnyEventData]:
    """The cell is over, and its session keeps the slots."""
    slots = pool.job(job).members
    about: dict[str, Any] = {"pinned": slots, "pinned_why": WHY, "pinned_s": 600.0, **changes}
    return pool.step(ExitReported, job=job, attempt=pool.job(job).attempt, outcome=outcome, **about)


def pinned(pool: Harness, slots: int = 2, **changes: Any) -> int:
    """The number of an ended cell whose session keeps its slots."""
    job = pool.running(slots, slots, slots, session="work", **changes)
    ended(pool, job)
    return job


def test_nobody_gets_the_slots_and_everybody_can_read_why() -> None:
    pool = Harness(host("a", 3))
    cell = pinned(pool)
    end = pool.events[-1].data
    assert isinstance(end, JobEnded)
    assert (end.pinned, end.pinned_why, end.held) == (("a:0", "a:1"), WHY, 0)
    assert pool.effects == (
        WatchRetention(
            job=cell, attempt=1, owner="ann", session="work", slots=("a:0", "a:1"), until=pool.events[-1].at + 600
        ),
    )
    view = pool.core.view(pool.now)
    assert (view.hosts[0].capacity, view.hosts[0].free, view.hosts[0].draining) == (1, 1, 0)
    other = pool.submit(1, 2, by="bob")
    (started,) = (data for data in pool.plan({other: 1}) if isinstance(data, JobStarted))
    assert started.slots == ("a:2",)
    waits = pool.submit(2, 2, by="bob")
    text = pool.core.explain(waits, pool.now)
    assert f"2 slots kept by the session of job {cell} of ann, for 10 min at most." in text
    assert WHY not in text
    text = pool.core.explain(cell, pool.now)
    assert f"Its session keeps a:0, a:1 for 10 min more at most, unless its next cell comes: {WHY}." in text
    shown = pool.core.slots()[0]
    assert (shown.state, shown.job, shown.owner, shown.attempt) == ("leased", cell, "ann", 1)
    assert shown.pinned == f"kept by the session 'work': {WHY}"
    (info,) = pool.core.jobs(job=cell)
    assert (info.pinned, info.pinned_why) == (("a:0", "a:1"), WHY)


def test_the_sessions_next_cell_starts_there_at_once_without_a_plan() -> None:
    pool = Harness(host("a", 2))
    cell = pinned(pool)
    other = pool.submit(1, 1, by="bob")
    following = pool.submit(2, 2, session="work")
    released, started = (event.data for event in pool.events[-2:])
    assert released == SlotsReleased(job=cell, attempt=1, slots=("a:0", "a:1"))
    assert isinstance(started, JobStarted)
    assert (started.job, started.slots) == (following, ("a:0", "a:1"))
    assert [type(effect) for effect in pool.effects] == [Launch]
    assert pool.job(cell).retention is None
    pool.settle(following)
    ended(pool, following, pinned=())
    assert [data.job for data in pool.plan({other: 1}) if isinstance(data, JobStarted)] == [other]


def test_ranks_keep_their_slots_in_the_order_that_was_reported() -> None:
    pool = Harness(host("a", 3))
    job = pool.running(2, 2, 2, session="work")
    ended(pool, job, pinned=("a:1", "a:0"))
    following = pool.submit(2, 2, session="work")
    assert pool.job(following).slots == ("a:1", "a:0")


@pytest.mark.parametrize("changes", [{"by": "bob"}, {"session": "play"}, {"session": "work", "least": 1, "most": 1}])
def test_another_session_or_size_does_not_start_there(changes: dict[str, Any]) -> None:
    pool = Harness(host("a", 2))
    pinned(pool)
    least, most = changes.pop("least", 2), changes.pop("most", 2)
    job = pool.submit(least, most, **{"session": "work", **changes})
    assert pool.job(job).phase == "queued"


def test_a_cell_that_waits_already_goes_on_there() -> None:
    pool = Harness(host("a", 2))
    cell = pool.running(2, 2, 2, session="work")
    following = pool.submit(2, 2, session="work")
    ended(pool, cell)
    assert pool.job(following).phase == "starting"


def test_they_come_free_when_the_workers_are_gone() -> None:
    pool = Harness(host("a", 2))
    cell = pinned(pool)
    assert pool.step(ReleaseReported, job=cell, attempt=2, slots=("a:0", "a:1")) == []
    assert pool.step(ReleaseReported, job=cell, attempt=1, slots=("a:0", "b:7")) == [
        SlotsReleased(job=cell, attempt=1, slots=("a:0",))
    ]
    pool.step(ReleaseReported, job=cell, attempt=1, slots=("a:0", "a:1"))
    assert pool.core.wants_plan
    assert pool.core.view(pool.now).hosts[0].free == 2
    assert pool.step(ReleaseReported, job=cell, attempt=1, slots=("a:0", "a:1")) == []
    assert pool.core.jobs(job=cell)[0].pinned == ()


def test_a_cancel_of_the_ended_cell_ends_its_session() -> None:
    pool = Harness(host("a", 2))
    cell = pinned(pool)
    assert pool.step(Cancel, job=cell, by="root") == [UnpinRequested(job=cell, attempt=1, reason="cancelled by root")]
    assert pool.effects == (Stop(job=cell, attempt=1, owner="ann", how="cancel", reason="cancelled by root"),)
    assert pool.step(Cancel, job=cell) == []
    following = pool.submit(2, 2, session="work")
    assert pool.job(following).phase == "queued"  # the workers are on their way out
    assert [type(effect) for effect in outstanding(pool.core.state, "ann")] == [WatchRetention, Stop]


@pytest.mark.parametrize("what", ["slot", "pool", "host lost"])
def test_a_drain_or_a_lost_host_ends_the_session(what: str) -> None:
    pool = Harness(host("a", 2), host("b", 1))
    cell = pinned(pool)
    if what == "host lost":
        found = pool.step(HostsReported, hosts=(host("b", 1),))
    else:
        found = pool.step(DrainSlots, target={"slot": "a:1", "pool": ""}[what], by="root", reason="fan")
    (unpin,) = (data for data in found if isinstance(data, UnpinRequested))
    assert unpin.job == cell
    assert ("is out" if what == "host lost" else "is drained") in unpin.reason
    assert set(pool.core.state.slots) == {"a:0", "a:1", "b:0"}
    pool.step(ReleaseReported, job=cell, attempt=1, slots=("a:0", "a:1"))
    assert pool.core.state.retaining == set()


def test_slots_that_were_drained_while_the_cell_ran_are_not_kept() -> None:
    pool = Harness(host("a", 2))
    cell = pool.running(2, 2, 2, session="work")
    pool.step(DrainSlots, target="a:0", by="root", reason="fan")
    assert any(isinstance(data, UnpinRequested) for data in ended(pool, cell))


def test_an_agent_that_comes_back_hears_of_it_again() -> None:
    pool = Harness(host("a", 2))
    cell = pinned(pool)
    (order,) = outstanding(pool.core.state, "ann")
    assert isinstance(order, WatchRetention)
    assert order.job == cell
    assert outstanding(pool.core.state, "bob") == []


def test_a_cell_that_was_preempted_ends_there_for_another_attempt_would_be_refused() -> None:
    pool = Harness(host("a", 2))
    cell = pool.running(2, 2, 2, session="work")
    assert isinstance(pool.plan({})[0], StopRequested)
    ended(pool, cell, "preempted")
    end = pool.events[-1].data
    assert isinstance(end, JobEnded)
    assert (end.outcome, end.pinned) == ("failed", ("a:0", "a:1"))
    assert "not run twice" in end.reason


def test_nothing_is_kept_that_the_cell_did_not_hold_or_without_a_session() -> None:
    pool = Harness(host("a", 3))
    cell = pool.running(2, 2, 2, session="work")
    ended(pool, cell, pinned=("a:2", "nowhere:1"))
    assert pool.core.state.retaining == set()
    other = pool.running(1, 1, 1)
    ended(pool, other)
    assert pool.core.state.retaining == set()


def test_a_job_whose_session_keeps_slots_is_not_forgotten() -> None:
    pool = Harness(host("a", 3))
    cell, other = pinned(pool), pool.running(1, 1, 1)
    ended(pool, other, pinned=())
    pool.now += 10_000
    pool.step(Forget, before=pool.now, keep=0)
    assert list(pool.core.state.ended) == [cell]


def test_a_cell_of_an_elastic_session_begins_with_the_workers_that_stayed() -> None:
    pool = Harness(host("a", 4))
    cell = pool.running(3, 1, 4, session="work")
    waits = pool.submit(1, 4, session="work", begins=2)
    ended(pool, cell)
    assert pool.job(waits).slots == ("a:0", "a:1", "a:2")


def test_a_replay_knows_what_is_kept() -> None:
    pool = Harness(host("a", 2))
    pinned(pool)
    again = Harness()
    for event in pool.events:
        again.core.fold(event)
    assert again.core.state == pool.core.state
    hosts = (replace(host("a", 2), labels={"rack": "3"}),)
    pool.step(HostsReported, hosts=hosts)
    assert pool.core.view(pool.now).hosts[0].capacity == 0
