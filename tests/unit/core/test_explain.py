"""Why a job waits or holds what it holds, in words."""

from __future__ import annotations

import pytest

from jupyter_elastic import types as t
from jupyter_elastic.errors import NotFound
from jupyter_elastic.scheduler.core.explain import span
from jupyter_elastic.types import AgentReported, Cancel, ExitReported, HostsReported, Progress, ProgressReported
from tests.support.books import Books, host


def test_a_waiting_job_hears_what_is_missing_and_until_about_when() -> None:
    books = Books(host("a", 4))
    holder = books.running(3, 2, 4, max_time_s=3600.0)
    first, job = books.submit(2, 2), books.submit(2, 4)
    for samples in (0.0, 100.0):
        seen = Progress(samples=samples, total_samples=12_100.0, samples_per_s=100.0)
        books.step(ProgressReported, job=holder, attempt=1, progress=seen)
    books.plan({holder: 3}, reasons={job: "job 2 goes first"})
    text = books.core.explain(job, books.now + 10)
    assert "needs 2 slots to start" in text
    assert "1 slot of 4 free." in text
    assert f"Before it in the queue: job {first}." in text
    assert "fifo says: job 2 goes first" in text
    assert "in about 2 min" in text
    books.plan({holder: 2})
    assert "1 draining from job 1" in books.core.explain(job, books.now)


def test_without_progress_it_says_so_and_with_an_estimate_it_guesses() -> None:
    books = Books(host("a", 2))
    books.running(2)
    job = books.submit(1, 1)
    assert "can't be told" in books.core.explain(job, books.now)
    books = Books(host("a", 2))
    books.running(2, estimate_s=62.0)
    job = books.submit(1, 1)
    assert "in about 60 s" in books.core.explain(job, books.now)


def test_enough_is_free() -> None:
    books = Books(host("a", 2))
    job = books.submit()
    assert "as soon as a plan gives it slots" in books.core.explain(job, books.now)


def test_slots_that_are_out_are_named() -> None:
    books = Books(host("a", 2), host("b", 2))
    job = books.submit(4, 4)
    books.step(HostsReported, hosts=(host("a", 2),))
    assert "can't give 4 now" in books.core.explain(job, books.now)


def test_the_agent_that_is_away() -> None:
    books = Books(host("a", 2))
    running, waiting = books.running(1), books.submit()
    books.step(AgentReported, by="ann", connected=False)
    assert "The agent of ann is not connected" in books.core.explain(running, books.now)
    assert "run `jupyter elastic agent`" in books.core.explain(waiting, books.now)


def test_a_running_job_hears_its_size_and_why() -> None:
    books = Books(host("a", 4), host("b", 2))
    job = books.submit(1, 6, max_time_s=600.0)
    books.plan({job: 6}, reasons={job: "alone in the pool"})
    text = books.core.explain(job, books.now)
    assert "is starting with 6 workers (it asked for 1:6)" in text
    assert "not reported yet" in text
    books.settle(job)
    books.step(HostsReported, hosts=(host("a", 4),))
    text = books.core.explain(job, books.now)
    assert "with 4 workers" in text
    assert "host lost: b:0, b:1" in text
    assert "still has to release b:0, b:1 (b:0, b:1 lost)" in text
    assert "Generation 2 is wanted, 1 was the last to settle" in text
    assert "time limit is reached in 10 min" in text


def test_the_end_and_a_failed_attempt() -> None:
    books = Books(host("a", 2))
    job = books.running(1)
    books.step(ExitReported, job=job, attempt=1, outcome="lost", reason="driver killed")
    assert "Attempt 1 ended: driver killed." in books.core.explain(job, books.now)
    books.plan({job: 1})
    books.step(Cancel, job=job, reason="enough")
    assert "is being stopped (cancel): enough" in books.core.explain(job, books.now)
    books.step(ExitReported, job=job, attempt=2, outcome="cancelled")
    assert books.core.explain(job, books.now) == f"Job {job} was cancelled: enough."
    with pytest.raises(NotFound):
        books.core.explain(9, books.now)


def test_spans() -> None:
    assert [span(s) for s in (-3, 0.4, 89, 600, 7200)] == ["0 s", "0 s", "89 s", "10 min", "2.0 h"]


def test_the_sentence_about_the_start_can_be_told_from_the_rest() -> None:
    books = Books(host("a", 2))
    books.running(2)
    job = books.submit(1, 1)
    text, until = books.core.explain(job, books.now), books.core.until(job, books.now)
    assert until == "When it can start can't be told: running jobs don't say how much is left."
    assert text.endswith(until)
    books.step(AgentReported, by="ann", connected=False)
    assert books.core.until(job, books.now) == ""  # no waiting helps
    books.step(AgentReported, by="ann", connected=True)
    books.step(Cancel, job=job)
    assert books.core.until(job, books.now) == ""


def test_deaths_and_what_came_of_them() -> None:
    books = Books(host("a", 2))
    job = books.running(2)
    about = {"job": job, "attempt": 1, "rank": 1, "slot": "a:1"}
    books.step(t.DeathReported, **about, count=1, cause="was killed by SIGKILL", step=120)
    assert "1 worker died: rank 1 was killed by SIGKILL at step 120, 4 s ago." in books.core.explain(job, books.now + 4)
    books.step(t.ReplacementReported, **about, count=1, after_s=0.42)
    said = "1 worker died: rank 1 was killed by SIGKILL at step 120; rank 1 was replaced after 0.4 s"
    assert said in books.core.explain(job, books.now)


def test_what_was_asked_for_beside_the_size_is_named() -> None:
    books = Books(host("a", 4))
    job = books.running(2, 1, 4, sizes=(1, 2, 4), preemptible=False, deadline_at=books.now + 7300)
    text = books.core.explain(job, books.now)
    assert "(it asked for 1 or 2 or 4)" in text
    assert "No policy may take all its slots (--no-preempt)." in text
    assert "Its deadline is in 2.0 h." in text
    assert "Its deadline passed 60 s ago." in books.core.explain(job, books.job(job).spec.deadline_at + 60)
