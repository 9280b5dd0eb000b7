"""What the daemon does about an agent that is there and gives no slots back."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.agents import Agents
from jupyter_elastic.scheduler.journal.queries import row
from jupyter_elastic.scheduler.journal.state_store import StateStore
from jupyter_elastic.scheduler.net.peers import Peer
from jupyter_elastic.scheduler.net.transport import Transport
from jupyter_elastic.scheduler.slots.leases import MARGIN_S
from jupyter_elastic.types import (
    Cancel,
    Event,
    ExitReported,
    JobEnded,
    JobRequeued,
    SlotsReleased,
    Stimulus,
    UnpinRequested,
)
from jupyter_elastic.types.errors import BadRequest
from tests.support.harness import Harness, host

TERM_S = 30.0


class Pool(Harness):
    """Four slots and the agent of Ann, which runs jobs and does nothing but renew."""

    def __init__(self) -> None:
        super().__init__(host("a", 4), lease_s=TERM_S)
        self.failing = None
        self.forgotten: list[Peer] = []
        self.agents = Agents(cast("StateStore", self), cast("Transport", self), lambda: self.now)
        self.peer = Peer(cast("Any", None), b"1", "ann")
        self.agents.greet(self.peer, wire.Hello(version=wire.VERSION, role="agent"))

    def stamp(self, by: str = "daemon") -> dict[str, Any]:
        return {"at": self.now, "by": by, "id": f"d{len(self.events)}"}

    def report(self, stimulus: Stimulus) -> None:
        self.events += self.core.step(stimulus)[0]

    def forget(self, peer: Peer) -> None:
        self.forgotten.append(peer)

    def send(self, peer: Peer, frame: bytes) -> None:
        pass

    def renews(self, seconds: float) -> set[tuple[int, int]]:
        """For so long the agent renews all that it ever ran, every second; what it holds then."""
        held: set[tuple[int, int]] = set()
        for _ in range(int(seconds)):
            self.now += 1.0
            self.peer.received_at = self.now
            held = set(self.agents.renew(self.peer, [(job, 1) for job in range(1, self.core.state.next_job)]))
            self.agents.end_leases()
            self.agents.drop_silent()
        return held

    def last(self, kind: type) -> Event:
        return [event for event in self.events if isinstance(event.data, kind)][-1]

    def session(self, *, pinned_s: float = 60.0) -> int:
        """A session whose cell has ended, and whose memory is on its slots still."""
        job = self.running(2, 2, 2, session="s1")
        pins = {"pinned": self.job(job).slots, "pinned_why": "memory", "pinned_s": pinned_s}
        self.step(ExitReported, job=job, attempt=1, outcome="completed", **pins)
        assert self.core.state.retaining == {job}
        return job


def test_an_attempt_that_does_not_end_is_lost_and_its_agent_keeps_its_others() -> None:
    pool = Pool()
    stuck, other = pool.running(2, 2, 2), pool.running(1)
    pool.step(Cancel, by="ada", job=stuck, reason="space is needed")
    assert pool.renews(TERM_S) == {(other, 1)}
    assert pool.core.state.jobs[stuck].draining, "not before the processes have had their time"
    pool.renews(MARGIN_S + 5.0)
    ended = pool.last(JobEnded)
    assert (ended.by, ended.data.job, ended.data.outcome) == ("daemon", stuck, "cancelled")
    assert re.fullmatch(r"space is needed; it had not ended 4\d s after it was to; .* may still run", ended.data.reason)
    assert pool.last(SlotsReleased).data.slots == ("a:0", "a:1")
    assert pool.renews(500.0) == {(other, 1)}
    assert pool.core.state.jobs[other].phase == "running"
    assert pool.forgotten == []


def test_one_that_is_preempted_and_does_not_end_counts_as_lost() -> None:
    pool = Pool()
    stuck = pool.running(2)
    pool.plan({})
    assert pool.core.state.jobs[stuck].stop == "preempt"
    pool.renews(180.0)
    assert pool.core.state.jobs[stuck].draining, "it may be saving until then"
    pool.renews(40.0)
    assert pool.last(JobRequeued).data.cause == "lost"
    assert pool.core.state.jobs[stuck].losses == 1
    assert (stuck, 1) not in pool.renews(5.0)


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_administrator_takes_slots_back_by_force_and_it_is_recorded(cancelled: bool) -> None:
    pool = Pool()
    stuck = pool.running(2)
    if cancelled:
        pool.step(Cancel, by="ann", job=stuck)
    with pytest.raises(BadRequest, match="--force"):
        pool.agents.release(pool.job(stuck), "ada", "")
    pool.agents.release(pool.job(stuck), "ada", "a class waits", force=True)
    end = pool.last(JobEnded if cancelled else JobRequeued)
    told = row(end, {stuck: "ann"})
    assert (told.by, told.user, told.job) == ("ada", "ann", stuck)
    assert "released by ada by force: a class waits; something of it may still run" in told.reason
    assert pool.last(SlotsReleased).data.slots == ("a:0", "a:1")
    assert pool.core.state.agents["ann"], "its agent is there, and is told with its next renewal"
    assert pool.renews(2.0) == set()


def test_what_a_session_keeps_can_be_taken_back_by_force() -> None:
    pool = Pool()
    job = pool.session()
    with pytest.raises(BadRequest, match="is completed and holds no slots"):
        pool.agents.release(pool.job(job), "ada", "")
    pool.agents.release(pool.job(job), "ada", "", force=True)
    assert (pool.last(SlotsReleased).by, pool.last(SlotsReleased).data.slots) == ("ada", ("a:0", "a:1"))
    assert not pool.core.state.retaining
    told = row(pool.last(UnpinRequested), {job: "ann"})
    assert (told.by, told.user, told.reason) == (
        "ada",
        "ann",
        "released by ada by force; something of it may still run",
    )


@pytest.mark.parametrize("wanted", [False, True])
def test_a_session_that_never_gives_its_slots_back_loses_them(wanted: bool) -> None:
    pool = Pool()
    job = pool.session(pinned_s=60.0)
    if wanted:
        pool.step(Cancel, by="ada", job=job)
    else:
        pool.renews(60.0)
    pool.renews(TERM_S)
    assert pool.core.state.retaining, "its agent has a term to end what is there"
    pool.renews(MARGIN_S + 5.0)
    assert not pool.core.state.retaining
    assert pool.last(SlotsReleased).by == "daemon"
