"""The shell around the core: receive, step, journal, publish, perform; and again. It decides nothing.

Everything that changes the books runs in the loop's one thread, batch by batch: all that came in is stepped, one
transaction puts the events on disk, and only then does anybody hear of them: the answers go out, the followers get the
events, the agents their orders. When a transaction fails, the books are read again from the journal, so that memory
never knows more than the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jupyter_elastic.errors import BadRequest, ElasticError, JournalError, NotAllowed, ProtocolError
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler import policies, requests
from jupyter_elastic.scheduler.clock import Clock
from jupyter_elastic.scheduler.core.agents import objection
from jupyter_elastic.scheduler.core.state import Job
from jupyter_elastic.scheduler.hosts import one_machine, without_own
from jupyter_elastic.scheduler.journal import Journal
from jupyter_elastic.scheduler.planner import Planner
from jupyter_elastic.scheduler.policy_runner import PolicyRunner
from jupyter_elastic.scheduler.restore import LONG, restore, save_snapshot
from jupyter_elastic.scheduler.settings import FORGET_S, Settings
from jupyter_elastic.scheduler.subscriptions import Streams
from jupyter_elastic.scheduler.transport import Peer, Received, Transport
from jupyter_elastic.types import (
    AgentReported,
    AnyEffect,
    Event,
    Forget,
    Host,
    HostsReported,
    JobId,
    JobProgressed,
    Stimulus,
    Tick,
    UsePolicy,
)

HOUSEKEEPING_S = 1.0
PEER_SILENCE_S = 3600.0
HELD = 10_000
"""Reports kept while the journal can't be written."""
DRAIN_S = 0.005

log = logging.getLogger(__name__)


class _Ask(NamedTuple):
    """A request whose answer goes out once the batch is on disk."""

    peer: Peer
    id: int


class Daemon:
    """One pool: its books, its journal, its sockets."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        """Open the journal and read the books. JournalError as `Journal` says."""
        self.settings = settings
        self.clock = clock or Clock()
        self.rights = settings.rights
        self.shares = settings.shares
        self.pool = str(settings.state_dir)
        self.started_at = self.clock.now()
        self.journal = Journal(settings.state_dir / "journal.sqlite")
        self.core, self.replayed = restore(self.journal, settings.shares)
        self.transport = Transport(self._take, self._rest, self.clock.monotonic)
        self.streams = Streams(self.journal, self.transport, self.rights, self._find)
        self.endpoints: list[str] = []
        self.failing: JournalError | None = None
        """Why nothing can be written now; None when all is well."""
        self._boot = f"{os.getpid()}.{int(self.started_at * 1000):x}"
        self._ids = 0
        self._events: list[Event] = []
        self._effects: list[AnyEffect] = []
        self._uncertain: list[tuple[Stimulus, _Ask | None]] = []
        """Reports of this batch; they are held when its transaction fails."""
        self._held: list[tuple[Stimulus, _Ask | None]] = []
        self._answers: list[tuple[Peer, int, wire.AnyAnswer]] = []
        self._asking: _Ask | None = None
        self._deferred = False
        self._agents: dict[str, Peer | None] = {}
        """The agent of each user; None: it was there before our restart and may come back."""
        self._agent_limit: dict[str, float] = {}
        self._greeted: list[Peer] = []
        self._snapshot_seq = self.core.state.seq - self.replayed
        self._forget_at = self.clock.monotonic()
        self._runner = PolicyRunner(settings.deadline_s)
        self._planner = Planner(self, self._runner, self.clock.monotonic)
        self._errands: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._draining = False
        self._fatal: JournalError | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop()`; `ready` is called once the sockets stand."""
        try:
            self._start()
            if ready is not None:
                ready()
            tasks = [asyncio.create_task(job()) for job in (self._planner.run, self._keep_house, self._watch_hosts)]
            stopping = asyncio.create_task(self._stopping.wait())
            done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in [stopping, *tasks]:
                task.cancel()
            await asyncio.gather(stopping, *tasks, return_exceptions=True)
            for task in done - {stopping}:
                task.result()  # a task of ours never ends but by an error: show it
            if self._fatal is not None:
                raise self._fatal
        finally:
            self._runner.close()
            self.transport.close()
            if self.failing is None and self.core.state.seq - self._snapshot_seq > LONG:
                save_snapshot(self.journal, self.core)
            self.journal.close()

    def stop(self) -> None:
        """End; jobs go on."""
        asyncio.get_running_loop().call_later(0.02, self._stopping.set)  # the answer to who wished it goes out first

    def _start(self) -> None:
        settings = self.settings
        # A pool that has a history keeps the policy that was chosen last.
        policy = settings.policy or ("" if self.core.state.seq else policies.DEFAULT)
        self.endpoints.append(self.transport.listen_unix(str(settings.socket), shared=settings.shared))
        if settings.tcp and settings.curve is not None:
            self.endpoints.append(self.transport.listen_tcp(settings.tcp, settings.curve))
        limit = self.clock.monotonic() + settings.agent_silence_s
        for user, connected in self.core.state.agents.items():
            if connected:
                self._agents[user], self._agent_limit[user] = None, limit
        self._see_hosts(one_machine(settings.source.hosts(self._slots_held())))
        if policy and policy != self.core.state.policy:
            self._runner.check(policy, {}, "")
            reason = "the daemon was started with it" if settings.policy else "the default of a new pool"
            self.command(UsePolicy(at=self.now(), by="daemon", id=self.next_id(), name=policy, reason=reason))
        if not self.commit():
            raise JournalError(str(self.failing))
        self._planner.news(0)
        self.transport.start()
        log.info(
            "pool %s: %d events (%d read), %d unfinished jobs, %d slots, policy %s, at %s",
            self.pool, self.journal.last_seq, self.replayed, len(self.core.state.jobs), self.core.state.capacity,
            self.core.state.policy, ", ".join(self.endpoints),
        )  # fmt: skip

    def _find(self, job: JobId) -> Job | None:
        return self.core.state.find(job)

    # --- receive ------------------------------------------------------------------------------------------------------

    def _take(self, received: Received) -> None:
        """Answer a frame; the answer goes out with `_rest`."""
        peer = received.peer
        try:
            request = wire.decode_request(received.frame)
        except Exception as problem:  # ProtocolError, or what our decoder did not foresee: one frame, not the batch
            self.transport.counts["refused"] += 1
            refusal = wire.Refused(code=getattr(problem, "code", ProtocolError.code), message=str(problem)[:500])
            self._answers.append((peer, 0, refusal))
            return
        self._asking, self._deferred = _Ask(peer, request.id), False
        try:
            answer = requests.answer(self, peer, request.ask)
        except ElasticError as problem:
            answer = wire.Refused(code=problem.code, message=str(problem))
        except Exception:
            log.exception("an ask of %s could not be answered: %.200r", peer.user, request.ask)
            answer = wire.Refused(code="error", message="an error in the daemon; its log has the details")
        self._asking = None
        if not self._deferred:
            self._answers.append((peer, request.id, answer))

    def _rest(self) -> None:
        """There is no more at the moment: what was taken becomes lasting, and is told."""
        answers, self._answers = self._answers, []
        self.commit(answers)

    # --- step ---------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Wall time."""
        return self.clock.now()

    def next_id(self) -> str:
        """A new id for a stimulus of our own."""
        self._ids += 1
        return f"{self._boot}.{self._ids}"

    def command(self, stimulus: Stimulus) -> None:
        """Step a command. Refused with JournalError while nothing can be written."""
        if self.failing is not None:
            raise self.failing
        self._step(stimulus)

    def observe(self, stimulus: Stimulus) -> None:
        """Step a report; while nothing can be written it is held, and answered later."""
        if self.failing is not None:
            if len(self._held) >= HELD:
                raise self.failing
            self._held.append((stimulus, self._asking))
            self._deferred = True
            return
        self._step(stimulus)
        self._uncertain.append((stimulus, self._asking))

    def _step(self, stimulus: Stimulus) -> None:
        try:
            events, effects = self.core.step(stimulus)
        except ElasticError:
            raise
        except Exception:
            # The books may be half written: keep what was whole, and read them again without this stimulus.
            log.exception("the core failed on %.500r", stimulus)
            with contextlib.suppress(JournalError):
                self.journal.append(self._events)
            self._read_books_again()
            raise BadRequest("an error in the daemon; its log has the details") from None
        self._events += events
        self._effects += effects

    def greet(self, peer: Peer, hello: wire.Hello) -> None:
        """An agent said Hello: it is its user's agent from now on, unless another one is."""
        problem = objection(self.core.state, peer.user, hello.place, alone=hello.alone, take_over=hello.take_over)
        if problem:
            log.warning("an agent is refused: %s", problem)
            raise NotAllowed(problem)
        before = self._agents.get(peer.user)
        if before is not None:
            before.role = "client"
        peer.role, peer.place = "agent", hello.place
        self._agents[peer.user] = peer
        self._greeted.append(peer)
        self._see_agent(peer.user, connected=True)

    def _see_agent(self, user: str, *, connected: bool) -> None:
        if self.failing is None:
            peer = self._agents.get(user) if connected else None
            place = peer.place if peer is not None else None
            self.observe(AgentReported(at=self.now(), by=user, id=self.next_id(), connected=connected, place=place))

    def follow(self, peer: Peer, ask: wire.Follow) -> wire.Following:
        """Send events to the peer."""
        return self.streams.follow(peer, ask)

    def unfollow(self, peer: Peer, stream: int) -> None:
        """Send it no more events of that stream."""
        self.streams.unfollow(peer, stream)

    # --- journal, publish, perform ------------------------------------------------------------------------------------

    def commit(self, answers: Sequence[tuple[Peer, int, wire.AnyAnswer]] = ()) -> bool:
        """Put the batch on disk, then tell of it. False when that failed; then every answer is the reason."""
        events, effects, greeted = self._events, self._effects, self._greeted
        self._events, self._effects, self._greeted = [], [], []
        try:
            self.journal.append(events)
        except JournalError as problem:
            self._journal_failed(problem)
            held = {(id(ask.peer), ask.id) for _, ask in self._held if ask is not None}
            for peer, number, _ in answers:
                if (id(peer), number) not in held:
                    self._reply(peer, number, wire.Refused(code=problem.code, message=str(problem)))
            return False
        self._uncertain.clear()
        for peer, number, answer in answers:
            self._reply(peer, number, answer)
        self.streams.publish(events)
        self._perform(effects, greeted)
        if events:
            self._arm()
            if self.core.wants_plan:
                told = any(not isinstance(event.fact, JobProgressed) for event in events)
                self._planner.news(events[-1].seq if told else 0)
        self._drain_soon()
        return True

    def _reply(self, peer: Peer, number: int, answer: wire.AnyAnswer) -> None:
        try:
            frame = wire.encode(wire.AnswerMessage(id=number, answer=answer))
        except ProtocolError as problem:
            frame = wire.encode(
                wire.AnswerMessage(id=number, answer=wire.Refused(code=problem.code, message=str(problem)))
            )
        self.transport.send(peer, frame)

    def _perform(self, effects: Sequence[AnyEffect], greeted: Sequence[Peer]) -> None:
        """Send orders. Who has just come gets all that is open, which the new ones are among."""
        new = {peer.user for peer in greeted}
        for peer in greeted:
            for effect in self.core.outstanding(peer.user):
                self._order(peer, effect)
        for effect in effects:
            agent = self._agents.get(effect.owner)
            if agent is not None and effect.owner not in new:
                self._order(agent, effect)

    def _order(self, peer: Peer, effect: AnyEffect) -> None:
        self.transport.send(peer, wire.encode(wire.OrderMessage(effect=effect)))

    # --- when the disk is full ----------------------------------------------------------------------------------------

    def _journal_failed(self, problem: JournalError) -> None:
        log.error("%s", problem)
        self.failing = problem
        self._held += self._uncertain
        self._uncertain = []
        self._read_books_again()

    def _read_books_again(self) -> None:
        """What is not on disk did not happen. If the disk can't be read either, this daemon has to end."""
        self._events, self._effects, self._uncertain = [], [], []
        try:
            self.core, _ = restore(self.journal, self.settings.shares)
        except JournalError as problem:
            self._fatal = problem
            self._stopping.set()
        self._greeted = [
            peer for peer in self._agents.values() if peer is not None
        ]  # orders may have been lost with it

    def _try_to_write_again(self) -> None:
        if self.failing is None or not self.journal.probe():
            return
        log.info("the journal can be written again; %d reports were held", len(self._held))
        self.failing = None
        self._read_books_again()
        held, self._held = self._held, []
        answers: list[tuple[Peer, int, wire.AnyAnswer]] = []
        for stimulus, ask in held:
            with contextlib.suppress(ElasticError):
                self._step(stimulus)
            self._uncertain.append((stimulus, ask))
            if ask is not None:
                answers.append((ask.peer, ask.id, wire.Done()))
        for user, peer in self._agents.items():
            if peer is not None:
                self._see_agent(user, connected=True)
        self.commit(answers)

    def switch_policy(self, stimulus: UsePolicy) -> None:
        """Step the switch if such a policy can be made: that is tried aside, and answered when it ran."""
        if self.failing is not None:
            raise self.failing
        task = asyncio.create_task(self._try_and_switch(stimulus, self._asking))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        self._deferred = True

    async def _try_and_switch(self, stimulus: UsePolicy, asking: _Ask | None) -> None:
        check = self._runner.check
        answer: wire.AnyAnswer = wire.Done()
        try:
            await asyncio.to_thread(check, stimulus.name, stimulus.options, stimulus.source)
            self.command(stimulus)
        except ElasticError as problem:
            answer = wire.Refused(code=problem.code, message=str(problem))
        self.commit([(asking.peer, asking.id, answer)] if asking is not None else [])

    # --- time, hosts, agents ------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Wake up when the next time limit is reached."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        now = self.now()
        due = self.core.next_wakeup(now)
        if due is not None:
            self._alarm = asyncio.get_running_loop().call_later(max(due - now, 0.0) + 0.001, self._tick)

    def _tick(self) -> None:
        self._alarm = None
        if self.failing is None:
            with contextlib.suppress(ElasticError):
                self._step(Tick(at=self.now(), by="daemon", id=self.next_id()))
            self.commit()
        self._arm()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self._try_to_write_again()
            self._miss_agents()
            self.transport.prune(PEER_SILENCE_S)
            if self.failing is None:
                self._forget()
                self.commit()
                if self.core.state.seq - self._snapshot_seq > 4 * LONG:
                    self._snapshot_seq = self.core.state.seq
                    save_snapshot(self.journal, self.core)

    def _forget(self) -> None:
        if self.clock.monotonic() < self._forget_at:
            return
        self._forget_at = self.clock.monotonic() + FORGET_S
        now, settings = self.now(), self.settings
        before = now - settings.keep_s
        with contextlib.suppress(ElasticError):
            self._step(Forget(at=now, by="daemon", id=self.next_id(), before=before, keep=settings.keep_jobs))

    def _miss_agents(self) -> None:
        now = self.clock.monotonic()
        for user, peer in list(self._agents.items()):
            limit = self._agent_limit.get(user, 0.0) if peer is None else peer.heard_at + self.settings.agent_silence_s
            if now > limit or (peer is not None and peer.gone):
                del self._agents[user]
                if peer is not None:
                    self.transport.forget(peer)
                log.info("the agent of %s is gone", user)
                self._see_agent(user, connected=False)

    async def _watch_hosts(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.settings.scan_s)
            try:
                hosts = one_machine(await loop.run_in_executor(None, self.settings.source.hosts, self._slots_held()))
            except Exception as problem:
                log.warning("the hosts can't be seen; the last ones stand: %s", problem)
                continue
            if self.failing is None:
                self._see_hosts(hosts)
                self.commit()

    def _see_hosts(self, hosts: tuple[Host, ...]) -> None:
        hosts = without_own(hosts, self._slots_held())
        with contextlib.suppress(ElasticError):
            self._step(HostsReported(at=self.now(), by="daemon", id=self.next_id(), hosts=hosts))

    def _slots_held(self) -> frozenset[str]:
        return frozenset(slot for slot, book in self.core.state.slots.items() if book.job is not None)

    def _drain_soon(self) -> None:
        """Serve those who are behind, a little at a time."""
        if not self._draining and (self.streams.behind or self.transport.behind):
            self._draining = True
            asyncio.get_running_loop().call_later(DRAIN_S, self._drain)

    def _drain(self) -> None:
        self._draining = False
        self.transport.flush()
        self.streams.catch_up()
        self._drain_soon()
