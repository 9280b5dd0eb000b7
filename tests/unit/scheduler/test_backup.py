"""Which jobs keep an older journal from coming back, and what is fenced off when it does."""

from __future__ import annotations

import msgspec

from jupyter_elastic.scheduler.core import Core, State
from jupyter_elastic.scheduler.journal.backup import ATTEMPTS_AHEAD, JOBS_AHEAD, fence, unknown
from jupyter_elastic.types import ExitReported, JobRequeued
from tests.support.harness import Harness, host
from tests.support.invariants import check


def copied(pool: Harness) -> State:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(pool.core.state), type=State)


def test_a_job_that_runs_just_so_is_known_and_one_that_moved_came_or_was_started_again_is_not() -> None:
    pool = Harness(host("lab", 6))
    same, moved, again = (pool.running(1, 1, 2) for _ in range(3))
    then = copied(pool)
    assert unknown(pool.core.state, then) == []
    pool.plan({same: 1, moved: 2, again: 1})
    pool.settle(moved)
    pool.step(ExitReported, job=again, attempt=1, outcome="lost")
    pool.plan({same: 1, moved: 2, again: 1})
    new = pool.submit(1, 1)
    pool.plan({same: 1, moved: 2, again: 1, new: 1})
    assert [job.job for job in unknown(pool.core.state, then)] == [moved, again, new]
    other = Harness(host("lab", 6))
    other.submit(1, 2, by="bob", priority=1)
    assert unknown(other.core.state, then) == [], "what waits holds nothing"


def test_no_number_comes_twice_and_only_what_is_over_for_sure_starts_again() -> None:
    pool = Harness(host("lab", 6))
    stands, ended, again, waits = (*(pool.running(1, 1, 2) for _ in range(3)), pool.submit(1, 1))
    then = copied(pool)
    pool.step(ExitReported, job=ended, attempt=1, outcome="completed")
    for attempt in (1, 2):
        pool.step(ExitReported, job=again, attempt=attempt, outcome="lost")
        pool.plan({stands: 1, again: 1, waits: 1})
    pool.step(ExitReported, job=again, attempt=3, outcome="lost")
    pool.submit(1, 1)
    assert [job.job for job in unknown(pool.core.state, then)] == [waits]
    pool.step(ExitReported, job=waits, attempt=1, outcome="lost")
    core = Core(then)
    events = fence(core, pool.core.state, pool.now)
    check(core.state)
    assert [event.data.job for event in events if isinstance(event.data, JobRequeued)] == [again]
    phases = {job: (one.phase, one.attempt) for job, one in core.state.jobs.items()}
    assert phases == {stands: ("running", 1), ended: ("running", 1), again: ("queued", 3), waits: ("queued", 1)}
    assert core.state.next_job == pool.core.state.next_job


def test_where_nothing_is_known_nothing_runs_and_numbers_jump() -> None:
    pool = Harness(host("lab", 2))
    job = pool.running(1, 1, 1)
    core = Core(copied(pool))
    fence(core, None, pool.now)
    check(core.state)
    assert (core.state.jobs[job].phase, core.state.jobs[job].attempt) == ("queued", 1 + ATTEMPTS_AHEAD)
    assert core.state.next_job == job + 1 + JOBS_AHEAD
