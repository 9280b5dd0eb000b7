"""When slots come back whose agent is silent."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from jupyter_elastic.scheduler.core.agent_succession import objection
from jupyter_elastic.scheduler.core.react import outstanding
from jupyter_elastic.scheduler.slots.leases import MARGIN_S, Leases
from jupyter_elastic.types import (
    AgentOrigin,
    AgentReported,
    Cancel,
    DrainSlots,
    ExitReported,
    JobEnded,
    JobRequeued,
    JobStarted,
    Launch,
    Plan,
    Propose,
    ReleaseReported,
    RunningReported,
    Size,
    SlotsReleased,
    Tick,
)
from tests.support.harness import Harness, host

TERM_S = 30.0
SAVE_GRACE_S = 180.0


class Pool(Harness):
    """A core whose attempts have leases, and a clock for them."""

    def __init__(self, lease_s: float = TERM_S, **spec: Any) -> None:
        super().__init__(host("a", 2), lease_s=lease_s)
        self.clock = 50.0
        self.leases = Leases(lambda: self.clock)
        self.heard: dict[str, float] = {}
        self.step(AgentReported, connected=True)
        self.job = self.submit(2, 2, **spec)
        self.start()

    def start(self) -> None:
        plan = Plan(sizes={self.job: Size(workers=2)})
        self.started = self.step(Propose, by="daemon", policy="fifo", plan=plan)
        self.launches = self.effects

    def run_out_after(self, seconds: float) -> list[int]:
        self.clock += seconds
        return [job.job for job in self.leases.run_out(self.core.state, self.heard)]

    def end(self) -> list[object]:
        return self.step(ExitReported, by="daemon", job=self.job, attempt=1, outcome="lost", reason="silence")


def test_the_order_names_the_term_and_an_attempt_keeps_it() -> None:
    pool = Pool()
    assert [data.lease_s for data in pool.started if isinstance(data, JobStarted)] == [TERM_S]
    assert [effect.lease_s for effect in pool.launches if isinstance(effect, Launch)] == [TERM_S]
    assert [effect.lease_s for effect in outstanding(pool.core.state, "ann")] == [TERM_S]


def test_a_lease_runs_out_a_margin_after_its_term() -> None:
    pool = Pool()
    assert pool.run_out_after(0) == []  # it begins when it is first seen
    assert pool.run_out_after(TERM_S + MARGIN_S) == []
    assert pool.run_out_after(0.1) == [pool.job]
    assert pool.leases.renew(pool.core.state, "ann", [(pool.job, 1)]) == ((pool.job, 1),)
    assert pool.run_out_after(TERM_S + MARGIN_S) == []
    pool.leases = Leases(lambda: pool.clock)  # the daemon was started anew
    assert pool.run_out_after(TERM_S) == []
    assert pool.run_out_after(TERM_S + MARGIN_S) == []
    assert pool.run_out_after(0.1) == [pool.job]


def test_an_order_that_nobody_took_lasts_no_longer_than_its_agent() -> None:
    pool = Pool()
    pool.heard["ann"] = pool.clock - 11.0  # it is gone since then, and nobody knows yet
    assert pool.run_out_after(TERM_S + MARGIN_S - 11.0) == []
    pool.heard.clear()
    assert pool.run_out_after(0.1) == [pool.job]


def test_only_what_holds_slots_is_renewed_by_its_owner() -> None:
    pool = Pool()
    state = pool.core.state
    assert pool.leases.renew(state, "eve", [(pool.job, 1)]) == ()
    assert pool.leases.renew(state, "ann", [(pool.job, 2), (pool.job, 0), (99, 1)]) == ()
    pool.step(Cancel, job=pool.job)
    assert pool.leases.renew(state, "ann", [(pool.job, 1)]) == ((pool.job, 1),)
    pool.end()
    assert pool.leases.renew(state, "ann", [(pool.job, 1)]) == ()
    assert pool.run_out_after(1e6) == []


def test_without_a_term_slots_stay_until_their_agent_says_otherwise() -> None:
    pool = Pool(lease_s=0.0)
    assert pool.run_out_after(0) == []
    assert pool.run_out_after(1e9) == []


def test_what_the_attempt_says_after_its_end_counts_no_more_and_it_is_started_anew() -> None:
    pool = Pool()
    ended = pool.end()
    assert [type(data) for data in ended] == [SlotsReleased, JobRequeued]
    assert ended[1] == JobRequeued(job=pool.job, attempt=1, cause="lost", reason="silence")
    assert pool.leases.renew(pool.core.state, "ann", [(pool.job, 1)]) == (), "it is queued, and holds nothing"
    about = {"job": pool.job, "attempt": 1}
    assert pool.step(RunningReported, generation=1, slots=("a:0", "a:1"), **about) == []
    assert pool.step(ReleaseReported, slots=("a:0",), **about) == []
    assert pool.step(ExitReported, outcome="completed", **about) == []
    pool.start()
    assert [data.attempt for data in pool.started if isinstance(data, JobStarted)] == [2]
    assert pool.end() == []


def test_a_cancelled_job_is_over_with_its_lease() -> None:
    pool = Pool()
    pool.step(Cancel, by="root", job=pool.job, reason="space is needed")
    _, ended = pool.end()
    assert ended == JobEnded(job=pool.job, outcome="cancelled", reason="space is needed")


def test_an_agent_elsewhere_waits_for_the_term_of_the_first_and_no_longer() -> None:
    pool = Pool()
    pool.step(AgentReported, connected=True, place=AgentOrigin(place="here", description="host lab"))
    pool.step(AgentReported, connected=False)
    elsewhere = AgentOrigin(place="another container")
    refusal = objection(pool.core.state, "ann", elsewhere, alone=False, take_over=False)
    assert "only it can see what runs of job 1" in refusal
    pool.end()
    assert objection(pool.core.state, "ann", elsewhere, alone=False, take_over=False) == ""
    pool.step(AgentReported, connected=True, place=elsewhere)
    pool.start()
    assert [data.attempt for data in pool.started if isinstance(data, JobStarted)] == [2]


def ended_after(pool: Pool, limit_s: float, *, renewed: bool = True) -> float:
    """Seconds until the attempt is taken for lost, while its agent renews it every two seconds as long as it can."""
    began = pool.clock
    while pool.clock < began + limit_s:
        pool.clock += 2.0
        if renewed:
            pool.leases.renew(pool.core.state, "ann", [(pool.job, 1)])
        if pool.run_out_after(0):
            return pool.clock - began
    return inf


def stop(pool: Pool, how: str) -> None:
    if how == "cancel":
        pool.step(Cancel, by="root", job=pool.job)
    elif how == "time limit":
        pool.now += 1000.0
        pool.step(Tick, by="daemon")
    elif how == "drain":
        pool.step(DrainSlots, by="root", target="a", grace_s=0.0)
        pool.step(Tick, by="daemon")
    else:
        pool.step(Propose, by="daemon", policy="fifo", plan=Plan(sizes={}))
    assert pool.core.state.jobs[pool.job].phase == "stopping"


@pytest.mark.parametrize("how", ["cancel", "time limit"])
@pytest.mark.parametrize("lease_s", [5.0, 120.0])
def test_what_is_to_end_at_once_is_not_renewed_beyond_a_term_from_the_stop(how: str, lease_s: float) -> None:
    pool = Pool(lease_s, max_time_s=900.0)
    assert ended_after(pool, 300.0) == inf, "until then it is renewed as long as its agent likes"
    stop(pool, how)
    assert lease_s + MARGIN_S <= ended_after(pool, 1000.0) <= lease_s + MARGIN_S + 4.0


@pytest.mark.parametrize("how", ["drain", "preempt"])
@pytest.mark.parametrize("lease_s", [5.0, 120.0, 600.0])
def test_what_saves_before_it_ends_has_the_time_that_its_driver_gives_it(how: str, lease_s: float) -> None:
    pool = Pool(lease_s)
    stop(pool, how)
    longest_s = max(SAVE_GRACE_S + 20.0, lease_s) + MARGIN_S
    assert longest_s <= ended_after(pool, 2000.0) <= longest_s + 4.0


def test_a_cancel_after_a_preemption_counts_from_the_cancel() -> None:
    pool = Pool()
    stop(pool, "preempt")
    assert ended_after(pool, 100.0) == inf
    stop(pool, "cancel")
    assert TERM_S + MARGIN_S <= ended_after(pool, 1000.0) <= TERM_S + MARGIN_S + 4.0


def test_an_agent_that_asks_before_it_has_read_the_stop_is_not_told_that_its_slots_are_gone() -> None:
    pool = Pool()
    stop(pool, "cancel")
    pool.run_out_after(1.0)
    renew = [(pool.job, 1)]
    assert pool.leases.renew(pool.core.state, "ann", renew) == ((pool.job, 1),)
    pool.run_out_after(4.0)
    assert pool.leases.renew(pool.core.state, "ann", renew) == ()


def test_without_leases_what_is_told_to_stop_is_its_agents_to_end() -> None:
    pool = Pool(lease_s=0.0)
    stop(pool, "cancel")
    assert ended_after(pool, 5000.0) == inf
    assert pool.leases.renew(pool.core.state, "ann", [(pool.job, 1)]) == ((pool.job, 1),)
