"""Track which peer is the agent of which user, and send orders to agents.

Knows peers and orders; `core.agent_succession` decides if a new agent may succeed another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.core.agent_succession import objection
from jupyter_elastic.scheduler.core.react import outstanding
from jupyter_elastic.scheduler.core.state import Job
from jupyter_elastic.scheduler.journal.state_store import StateStore
from jupyter_elastic.scheduler.net.peers import Peer
from jupyter_elastic.scheduler.net.transport import Transport
from jupyter_elastic.scheduler.slots.leases import AttemptId, Leases
from jupyter_elastic.types import ACTIVE, AgentReported, AnyEffect, Cancel, ReleaseReported, TakenForLost
from jupyter_elastic.types.errors import BadRequest, NotAllowed, ProtocolError

SILENCE_S = 12.0
"""Seconds without a message after which an agent counts as gone (an agent sends one every 3 s)."""

MAY_RUN = "something of it may still run"

log = logging.getLogger(__name__)


class Agents:
    """Connected agents."""

    def __init__(self, store: StateStore, transport: Transport, monotonic: Callable[[], float]) -> None:
        """Give the agents that the journal names `SILENCE_S` to come back."""
        self._store = store
        self._transport = transport
        self._monotonic = monotonic
        self._peers: dict[str, Peer] = {}
        limit = monotonic() + SILENCE_S
        self._awaited = {user: limit for user, connected in store.core.state.agents.items() if connected}
        """Time until which agents that were connected before our restart may come back, by user."""
        self._greeted: set[Peer] = set()
        """Agents that are to get all outstanding orders."""
        self.leases = Leases(monotonic)
        self.failed_hosts: dict[str, dict[str, wire.FailedHost]] = {}
        """Failed hosts by user and host, as the users' agents last reported them."""

    def __len__(self) -> int:
        """Number of connected agents."""
        return len(self._peers)

    def greet(self, peer: Peer, hello: wire.Hello) -> None:
        """Make the peer its user's agent; NotAllowed if another agent is and must stay so."""
        state = self._store.core.state
        problem = objection(state, peer.user, hello.place, alone=hello.alone, take_over=hello.take_over)
        if problem:
            raise NotAllowed(problem)
        self._awaited.pop(peer.user, None)
        if peer.user in self._peers:
            self._peers[peer.user].role = "client"
        peer.role, peer.place = "agent", hello.place
        self._peers[peer.user] = peer
        self._greeted.add(peer)
        self._report(peer.user, peer)

    def expect(self, user: str) -> None:
        """Let jobs of a user whose agent was never seen wait for the agent, as for one that is gone."""
        if user not in self._store.core.state.agents:
            self._report(user, None)

    def renew(self, peer: Peer, attempts: Iterable[AttemptId]) -> tuple[AttemptId, ...]:
        """Renew the leases of an agent's attempts; return those that still hold slots. ProtocolError if no agent."""
        self.check_agent(peer)
        return self.leases.renew(self._store.core.state, peer.user, attempts)

    def check_agent(self, peer: Peer) -> None:
        """Raise ProtocolError unless the peer is its user's agent, which repeats its report once it is that again."""
        if peer.role != "agent":
            raise ProtocolError("only the user's agent may say that; say Hello with role agent first")

    def end_leases(self) -> None:
        """End the attempts whose lease has run out.

        Their agent is gone (if it lives, it has to send `Hello` again), or has not ended what it was ordered to end.
        """
        if self._store.failing is not None:
            return
        heard = {user: limit - SILENCE_S for user, limit in self._awaited.items()}
        heard |= {user: peer.received_at for user, peer in self._peers.items()}
        for job in self.leases.run_out(self._store.core.state, heard):
            about = {"user": job.owner, "job": job.job, "attempt": job.attempt}
            reason = f"nothing was heard of the agent of {job.owner} for the {job.lease_s:g} s of its lease"
            if job.owner in self._peers and (job.stop or job.retention):  # it lives, and goes on with its other jobs
                reason = f"it had not ended {self.leases.stopping_s(job):.0f} s after it was to; {MAY_RUN}"
            elif (peer := self._peers.pop(job.owner, None)) is not None:
                self._transport.forget(peer)
            log.warning("job %d attempt %d: its lease has run out: %s", job.job, job.attempt, reason, extra=about)
            self._lose(job, "daemon", reason)

    def release(self, job: Job, by: str, reason: str, *, force: bool = False) -> None:
        """Declare a job's attempt lost for an administrator.

        BadRequest while its agent can report its end, or while the end of its lease is due, unless by `force`.
        """
        kept = job.retention is not None and job.retention.exclusive
        if job.phase not in ACTIVE and not (force and kept):
            raise BadRequest(f"job {job.job} is {job.phase} and holds no slots")
        forced = f"`jupyter elastic job release {job.job} --force` does not wait; something of it may then still run"
        if not force and (job.owner in self._peers or job.owner in self._awaited):
            raise BadRequest(
                f"the agent of {job.owner} is there, and ends the job with `jupyter elastic job cancel {job.job}`; "
                f"that an agent is gone is noticed after {SILENCE_S:g} s; {forced}"
            )
        left_s = self.leases.left_s(job)
        if not force and left_s < inf:
            raise BadRequest(
                f"the slots of job {job.job} are free in {left_s:.0f} s, when its lease has run out: wait; {forced}"
            )
        if self._store.failing is not None:
            raise self._store.failing
        how, why = (" by force" if force else ""), (f": {reason}" if reason else "")
        told = f"released by {by}{how}{why}{f'; {MAY_RUN}' if force else ''}"
        if kept:  # for the record, and its agent
            self._store.report(Cancel(**self._store.stamp(by), job=job.job, reason=told))
        self._lose(job, by, told)

    def _lose(self, job: Job, by: str, reason: str) -> None:
        """Declare the attempt lost, with its session's retained slots, as its agent is gone or has not ended it."""
        if job.owner not in self._peers:
            self._report(job.owner, None)  # also of one that never came: its jobs wait for it now
        about: dict[str, Any] = {**self._store.stamp(by), "job": job.job, "attempt": job.attempt}
        if job.retention is not None:
            self._store.report(ReleaseReported(**about, slots=job.retention.slots))
        else:
            self._store.report(TakenForLost(**about, outcome="lost", reason=reason))

    def greet_again(self) -> None:
        """Send all agents their outstanding orders with the next commit, since orders may have been lost."""
        self._greeted = set(self._peers.values())

    def report_all(self) -> None:
        """Report all agents as connected, which was not possible while nothing could be written."""
        for user, peer in self._peers.items():
            self._report(user, peer)

    def execute(self, effects: Iterable[AnyEffect]) -> None:
        """Send orders. An agent that has just connected gets all outstanding ones, which include the new ones."""
        greeted, self._greeted = self._greeted, set()
        for peer in greeted:
            for effect in outstanding(self._store.core.state, peer.user):
                self._order(peer, effect)
        for effect in effects:
            agent = self._peers.get(effect.owner)
            if agent is not None and agent not in greeted:
                self._order(agent, effect)

    def drop_silent(self) -> None:
        """Report agents as gone that have disconnected or were silent for too long."""
        now = self._monotonic()
        late = [user for user, limit in self._awaited.items() if now > limit]
        gone = [user for user, peer in self._peers.items() if peer.gone or now > peer.received_at + SILENCE_S]
        for user in late:
            del self._awaited[user]
        for user in gone:
            self._transport.forget(self._peers.pop(user))
        for user in (*late, *gone):
            log.info("the agent of %s is gone", user, extra={"user": user})
            self._report(user, None)

    def _report(self, user: str, peer: Peer | None) -> None:
        if self._store.failing is None:
            place = None if peer is None else peer.place
            self._store.report(AgentReported(**self._store.stamp(user), connected=peer is not None, place=place))

    def _order(self, peer: Peer, effect: AnyEffect) -> None:
        self._transport.send(peer, wire.encode(wire.OrderMessage(effect=effect)))
