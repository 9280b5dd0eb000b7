"""Cells of a session run one after the other, whatever a policy says."""

from __future__ import annotations

from jupyter_elastic.scheduler.core.explain import explain
from jupyter_elastic.types import Cancel, JobStarted
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
    state = pool.core.state
    assert f"job {first} comes before it" in explain(state, state.jobs[second], pool.now)


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
