"""When slots come back whose agent is silent."""

from __future__ import annotations

from jupyter_elastic.scheduler.core.agents import objection
from jupyter_elastic.scheduler.core.react import outstanding
from jupyter_elastic.scheduler.leases import MARGIN_S, Leases
from jupyter_elastic.types import (
    AgentPlace,
    AgentReported,
    Cancel,
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
)
from tests.support.harness import Harness, host

TERM_S = 30.0


class Pool(Harness):
    """A core whose attempts have leases, and a clock for them."""

    def __init__(self, lease_s: float = TERM_S) -> None:
        super().__init__(host("a", 2), lease_s=lease_s)
        self.clock = 50.0
        self.leases = Leases(lambda: self.clock)
        self.heard: dict[str, float] = {}
        self.step(AgentReported, connected=True)
        self.job = self.submit(2, 2)
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
    pool.step(AgentReported, connected=True, place=AgentPlace(place="here", description="host lab"))
    pool.step(AgentReported, connected=False)
    elsewhere = AgentPlace(place="another container")
    refusal = objection(pool.core.state, "ann", elsewhere, alone=False, take_over=False)
    assert "only it can see what runs of job 1" in refusal
    pool.end()
    assert objection(pool.core.state, "ann", elsewhere, alone=False, take_over=False) == ""
    pool.step(AgentReported, connected=True, place=elsewhere)
    pool.start()
    assert [data.attempt for data in pool.started if isinstance(data, JobStarted)] == [2]
