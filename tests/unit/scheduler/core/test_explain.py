"""Why a job waits or holds what it holds, in words."""

from __future__ import annotations

import re

import pytest

from jupyter_elastic import types as t
from jupyter_elastic.scheduler.core.explain import span
from jupyter_elastic.scheduler.policies.fair import Fair
from jupyter_elastic.types import (
    AgentReported,
    Cancel,
    ExitReported,
    HostsReported,
    Progress,
    ProgressReported,
    Propose,
    UsePolicy,
)
from jupyter_elastic.types.errors import NotFound
from tests.support.harness import Harness, host


def test_a_waiting_job_hears_what_is_missing_and_until_about_when() -> None:
    pool = Harness(host("a", 4))
    holder = pool.running(3, 2, 4, max_time_s=3600.0)
    first, job = pool.submit(2, 2), pool.submit(2, 4)
    for samples in (0.0, 100.0):
        seen = Progress(samples=samples, total_samples=12_100.0, samples_per_s=100.0)
        pool.step(ProgressReported, job=holder, attempt=1, progress=seen)
    pool.plan({holder: 3}, reasons={job: "job 2 goes first"})
    text = pool.core.explain(job, pool.now + 10)
    assert "needs 2 slots to start" in text
    assert "1 slot of 4 free." in text
    assert f"Submitted before it: job {first}." in text
    assert "fifo says: job 2 goes first" in text
    assert "in about 2 min" in text
    pool.plan({holder: 2})
    assert "1 draining from job 1" in pool.core.explain(job, pool.now)


def test_without_progress_it_says_so_and_with_an_estimate_it_guesses() -> None:
    pool = Harness(host("a", 2))
    pool.running(2)
    job = pool.submit(1, 1)
    assert "start time is unknown" in pool.core.explain(job, pool.now)
    pool = Harness(host("a", 2))
    pool.running(2, estimate_s=62.0)
    job = pool.submit(1, 1)
    assert "in about 60 s" in pool.core.explain(job, pool.now)


def test_enough_is_free() -> None:
    pool = Harness(host("a", 2))
    job = pool.submit()
    assert "as soon as a plan gives it slots" in pool.core.explain(job, pool.now)


def test_slots_that_are_out_are_named() -> None:
    pool = Harness(host("a", 2), host("b", 2))
    job = pool.submit(4, 4)
    pool.step(HostsReported, hosts=(host("a", 2),))
    assert "can't give 4 now" in pool.core.explain(job, pool.now)


def test_the_agent_that_is_away() -> None:
    pool = Harness(host("a", 2))
    running, waiting = pool.running(1), pool.submit()
    pool.step(AgentReported, by="ann", connected=False)
    assert "The agent of ann is not connected" in pool.core.explain(running, pool.now)
    assert "run `jupyter elastic admin agent`" in pool.core.explain(waiting, pool.now)


def test_a_running_job_hears_its_size_and_why() -> None:
    pool = Harness(host("a", 4), host("b", 2))
    job = pool.submit(1, 6, max_time_s=600.0)
    pool.plan({job: 6}, reasons={job: "alone in the pool"})
    text = pool.core.explain(job, pool.now)
    assert "is starting with 6 workers (it asked for 1:6)" in text
    assert "not reported yet" in text
    pool.settle(job)
    pool.step(HostsReported, hosts=(host("a", 4),))
    text = pool.core.explain(job, pool.now)
    assert "with 4 workers" in text
    assert "host lost: b:0, b:1" in text
    assert "still has to release b:0, b:1 (b:0, b:1 lost)" in text
    assert "Generation 2 is wanted, 1 was the last to settle" in text
    assert "time limit is reached in 10 min" in text


def test_the_end_and_a_failed_attempt() -> None:
    pool = Harness(host("a", 2))
    job = pool.running(1)
    pool.step(ExitReported, job=job, attempt=1, outcome="lost", reason="driver killed")
    assert "Attempt 1 ended: driver killed. It goes on from its last commit." in pool.core.explain(job, pool.now)
    pool.plan({job: 1})
    pool.step(Cancel, job=job, reason="enough")
    assert "is being stopped (cancel): enough" in pool.core.explain(job, pool.now)
    pool.step(ExitReported, job=job, attempt=2, outcome="cancelled")
    assert pool.core.explain(job, pool.now) == f"Job {job} was cancelled: enough."
    with pytest.raises(NotFound):
        pool.core.explain(9, pool.now)


def test_what_a_pause_costs_is_said() -> None:
    pool = Harness(host("a", 2))
    for elastic, said in ((False, "begins anew: this cell keeps no commits (--no-preempt"), (True, "goes on from its")):
        job = pool.submit(1)
        pool.plan({job: 1})
        pool.settle(job, elastic=elastic)
        pool.plan({})
        pool.step(ExitReported, job=job, attempt=1, outcome="preempted")
        text = pool.core.explain(job, pool.now)
        assert f"It {said}" in text, text
        pool.step(Cancel, job=job)


def test_spans() -> None:
    assert [span(s) for s in (-3, 0.4, 89, 600, 7200)] == ["0 s", "0 s", "89 s", "10 min", "2.0 h"]


def test_the_sentence_about_the_start_can_be_told_from_the_rest() -> None:
    pool = Harness(host("a", 2))
    pool.running(2)
    job = pool.submit(1, 1)
    text, until = pool.core.explain(job, pool.now), pool.core.until(job, pool.now)
    assert until == "Its start time is unknown: running jobs don't say how much is left."
    assert text.endswith(until)
    pool.step(AgentReported, by="ann", connected=False)
    assert pool.core.until(job, pool.now) == ""  # no waiting helps
    pool.step(AgentReported, by="ann", connected=True)
    pool.step(Cancel, job=job)
    assert pool.core.until(job, pool.now) == ""


def test_deaths_and_what_came_of_them() -> None:
    pool = Harness(host("a", 2))
    job = pool.running(2)
    about = {"job": job, "attempt": 1, "rank": 1, "slot": "a:1"}
    pool.step(t.DeathReported, **about, count=1, cause="was killed by SIGKILL", step=120)
    assert "1 worker died: rank 1 was killed by SIGKILL at step 120, 4 s ago." in pool.core.explain(job, pool.now + 4)
    pool.step(t.ReplacementReported, **about, count=1, after_s=0.42)
    said = "1 worker died: rank 1 was killed by SIGKILL at step 120; rank 1 was replaced after 0.4 s"
    assert said in pool.core.explain(job, pool.now)


def test_what_was_asked_for_beside_the_size_is_named() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(2, 1, 4, sizes=(1, 2, 4), preemptible=False, deadline_at=pool.now + 7300)
    text = pool.core.explain(job, pool.now)
    assert "(it asked for 1 or 2 or 4)" in text
    assert "No policy may take all its slots (--no-preempt)." in text
    assert "Its deadline is in 2.0 h." in text
    assert "Its deadline passed 60 s ago." in pool.core.explain(job, pool.job(job).spec.deadline_at + 60)


def test_the_end_by_a_time_limit_says_who_waited() -> None:
    pool = Harness(host("a", 2))
    job = pool.running(2, max_time_s=30.0)
    pool.now += 60
    pool.step(t.Tick)
    waits = "ranks 0 and 1 wait for each other since 60 s"
    pool.step(t.ExitReported, job=job, attempt=1, outcome="failed", reason=waits)
    assert pool.job(job).reason == f"it ran for its time limit of 30 s; give it more with --max-time; {waits}"


def under_fair(slots: int) -> Harness:
    pool = Harness(host("a", slots))
    pool.step(UsePolicy, name="fair")
    return pool


def planned(pool: Harness, *, ends: int = 0) -> None:
    """What the policy says now, after a job has ended."""
    if ends:
        pool.step(ExitReported, job=ends, attempt=1, outcome="completed")
    pool.now += 100
    pool.step(Propose, by="daemon", policy="fair", plan=Fair(Fair.Options()).plan(pool.core.view(pool.now)))
    for job in list(pool.core.state.active_jobs()):
        if job.phase == "starting":
            pool.settle(job.job)


def test_under_fair_it_says_who_comes_before_and_why_and_about_when() -> None:
    pool = under_fair(1)
    hers = [pool.submit(1, 1, by="ann", estimate_s=600.0) for _ in range(3)]
    planned(pool)
    his = pool.submit(1, 1, by="bob", estimate_s=600.0)
    last = pool.submit(1, 1, by="cyd", estimate_s=600.0)
    planned(pool)
    assert "It is next in turn." in pool.core.explain(his, pool.now)
    text = pool.core.explain(last, pool.now)
    assert f"Before it in turn: job {his} of bob: bob has waited longer for a turn." in text
    assert "it starts in about 18 min" in text  # what is left of ann's and the whole of bob's
    text = pool.core.explain(hers[1], pool.now)
    assert f"Before it in turn: job {his} of bob, job {last} of cyd: ann holds 1 slot already." in text
    assert f"job {hers[1]} of ann" in pool.core.explain(hers[2], pool.now)


def test_under_fair_it_says_who_has_used_more_while_others_waited() -> None:
    pool = under_fair(1)
    hers = [pool.submit(1, 1, by="ann") for _ in range(3)]
    planned(pool)
    his = pool.submit(1, 1, by="bob")
    pool.now += 1000.0
    planned(pool, ends=hers[0])
    assert pool.job(his).size.workers
    late = pool.submit(1, 1, by="cyd")
    pool.now += 3000.0
    pool.step(ExitReported, job=his, attempt=1, outcome="completed")
    pool.submit(1, 1, by="bob")
    pool.plan({}, turn=(late, hers[1]))
    text = pool.core.explain(hers[1], pool.now)
    assert f"Before it in turn: job {late} of cyd" in text
    assert "waited" in text


def test_of_two_groups_it_says_which_one_has_to_wait() -> None:
    pool = under_fair(1)
    first = pool.submit(1, 1, by="ann", group="lab")
    planned(pool)
    next_one = pool.submit(1, 1, by="bob", group="lab")
    other = pool.submit(1, 1, by="cyd", group="class")
    planned(pool)
    assert "It is next in turn." in pool.core.explain(other, pool.now)
    assert f"Before it in turn: job {other} of cyd: lab holds 1 slot already." in pool.core.explain(next_one, pool.now)
    assert pool.job(first).size.workers


def test_a_user_who_is_called_as_the_group_of_another_is_told_who_comes_before() -> None:
    pool = under_fair(1)
    pool.submit(1, 1, by="bob")
    planned(pool)
    ours = {"ann": pool.submit(1, 1, by="ann", group="staff"), "staff": pool.submit(1, 1, by="staff")}
    planned(pool)
    texts = [pool.core.explain(job, pool.now) for job in ours.values()]
    assert any(f"Before it in turn: job {job} of {owner}." in text for owner, job in ours.items() for text in texts)


def test_beyond_a_day_no_time_is_said_but_how_many_come_before() -> None:
    pool = under_fair(1)
    pool.submit(1, 1, by="ann", estimate_s=90_000.0)
    planned(pool)
    first, second = (pool.submit(1, 1, by=owner, estimate_s=60.0) for owner in ("bob", "cyd"))
    planned(pool)
    assert "Not known yet when it starts: 0 jobs before it." in pool.core.explain(first, pool.now)
    assert "Not known yet when it starts: 1 job before it." in pool.core.explain(second, pool.now)


def test_what_has_run_longer_than_is_usual_is_not_said_to_end_at_once() -> None:
    pool = under_fair(1)
    for _ in range(2):
        planned(pool, ends=pool.running(1, 1, 1, by="ann"))  # after no time, and settled for 100 s until it is said
    pool.submit(1, 1, by="ann")
    planned(pool)
    pool.now += 7200.0
    his = pool.submit(1, 1, by="bob")
    planned(pool)
    (said,) = re.findall(r"it starts in about (.*)\.", pool.core.explain(his, pool.now))
    assert said.endswith(" h"), said


def test_of_a_second_job_of_a_user_it_is_not_said_that_nobody_reports() -> None:
    pool = under_fair(1)
    planned(pool, ends=pool.running(1, 1, 1, by="ann"))
    pool.submit(1, 1, by="ann")
    planned(pool)
    first, second = pool.submit(1, 1, by="bob"), pool.submit(1, 1, by="bob")
    planned(pool)
    assert "By how long jobs take here" in pool.core.explain(first, pool.now)
    text = pool.core.explain(second, pool.now)
    assert f"Before it in turn: job {first} of bob." in text
    assert "Not known yet when it starts: at least 1 job before it." in text


def test_a_policy_that_names_no_turn_is_explained_as_before() -> None:
    pool = Harness(host("a", 1))
    first = pool.running(1, 1, 1)
    second, third = pool.submit(1, 1), pool.submit(1, 1)
    pool.plan({first: 1}, turn=("x", third, 10**9, third))
    assert pool.core.state.turn == (third,)
    pool.plan({first: 1}, turn=5)
    assert f"Submitted before it: job {second}." in pool.core.explain(third, pool.now)
