"""Run one pool's daemon: it wires the parts together and serves until it is stopped. It decides nothing.

`requests` answers all frames that came in and the state store steps their stimuli; after the last one, one commit puts
the events on disk, and only then the answers go out, the subscribers get the events and the agents their orders. All of
it runs in the loop's one thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from math import inf

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler import metrics, policies, requests
from jupyter_elastic.scheduler.access import authenticators
from jupyter_elastic.scheduler.access.shares import EQUAL
from jupyter_elastic.scheduler.access.visibility import Visibility
from jupyter_elastic.scheduler.agents import Agents
from jupyter_elastic.scheduler.clock import Clock
from jupyter_elastic.scheduler.event_streams import Subscriptions
from jupyter_elastic.scheduler.journal.audit_query import AuditQuery
from jupyter_elastic.scheduler.journal.history_query import HistoryQuery
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.scheduler.journal.refusals import Refusals
from jupyter_elastic.scheduler.journal.state_store import Context, StateStore
from jupyter_elastic.scheduler.journal.usage_query import UsageQuery
from jupyter_elastic.scheduler.net.fair_queue import FairQueue
from jupyter_elastic.scheduler.net.peers import Peer
from jupyter_elastic.scheduler.net.rate_limits import UNIT_S, Allowances, too_fast, too_many_connections
from jupyter_elastic.scheduler.net.transport import Transport
from jupyter_elastic.scheduler.planning.planner import Planner
from jupyter_elastic.scheduler.planning.policy_runner import PolicyRunner
from jupyter_elastic.scheduler.settings import Settings
from jupyter_elastic.scheduler.timers import Timers
from jupyter_elastic.types import (
    AnyEffect,
    AuthenticatorContext,
    Credentials,
    Event,
    JobId,
    JobProgressed,
    KeyRegistered,
    KeyRevoked,
    UsePolicy,
    UseShares,
)
from jupyter_elastic.types.errors import (
    BadRequest,
    JournalError,
    NotAllowed,
    NotFound,
    ProtocolError,
    TooFast,
    TooMuch,
)

GUEST = -1
"""Invalid UNIX id, for a name that belongs to a user of a Hub and so to no UNIX user."""
SHARES_S = 1.0
"""Seconds between checks of the shares file for changes."""

RECORDED = frozenset({BadRequest.code, NotAllowed.code, NotFound.code, TooFast.code, TooMuch.code})
"""Codes of refusals that the journal keeps: those caused by the user, not by the daemon's own problems."""

FLOODS = "floods the pool with asks and is hung up on"

log = logging.getLogger(__name__)


class _Stopped(Exception):
    """Ends the daemon's tasks."""


class Daemon:
    """State, journal and sockets of one pool."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        """Open the journal and read the state. Raises JournalError as `Journal`."""
        clock = clock or Clock()
        self.settings = settings
        self.rights = settings.rights
        self.shares = settings.shares.shares if settings.shares else EQUAL
        self.visibility = Visibility(self.rights, hide_names=settings.hide_names)
        self.limits = settings.limits
        self._allowances = Allowances(settings.limits.asks_per_s, clock.monotonic)
        self.pool = str(settings.state_dir)
        self.started_at = clock.now()
        self.endpoints: list[str] = []
        self.store = StateStore(
            Journal(settings.state_dir / "journal.sqlite"), self.shares, clock, lease_s=settings.lease_s
        )
        self.store.reply, self.store.committed, self.store.reloaded = self._reply, self._committed, self._reloaded
        context = AuthenticatorContext(
            folder=self.pool,
            key_table=str(settings.key_table or settings.state_dir / "keys.txt"),
            key_table_required=settings.key_table is not None,
            uid_of=self._id_of,
            registered=self._registered,
        )
        self.transport = Transport(
            self._take,
            self._commit,
            clock.monotonic,
            connections_by_user=settings.limits.connections,
            is_admin=self.rights.is_admin,
            is_barred=self._allowances.overdrawn,
            admit=None if settings.limits.asks_per_s == inf else self._admit,
            authenticators=authenticators.Authenticators(
                authenticators.make(settings.authenticators, context),
                self.rights.admins,
                {uid: name for name, uid in self.rights.ids.items()},
            ),
        )
        self.usage = UsageQuery(self.store.journal)
        self.audit = AuditQuery(self.store.journal)
        self.past = HistoryQuery(self.store.journal)
        self._refusals = Refusals()
        self._clock = clock
        self.agents = Agents(self.store, self.transport, clock.monotonic)
        self.subscriptions = Subscriptions(self.store, self.transport, self.visibility, self.rights, settings.limits)
        self._runner = PolicyRunner(settings.deadline_s)
        self._planner = Planner(self.store, self._runner, clock.monotonic)
        self._timers = Timers(settings, clock, self.store, self.agents, self.transport, self._refusals)
        self._counted = metrics.Counted()
        self._answers: list[tuple[Context, wire.AnyAnswer]] = []
        self._long: FairQueue[tuple[Context, wire.AnyAsk, requests.LongAnswer]] = FairQueue()
        self._any_long = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._stopping = asyncio.Event()
        self._fatal: JournalError | None = None

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop()`; `ready` is called once the sockets are open."""
        try:
            self._start()
            if ready is not None:
                ready()
            await self._serve()
            if self._fatal is not None:
                raise self._fatal
            self._timers.tell_refusals(inf)
            self.store.commit()
        finally:
            self._runner.close()
            self.transport.close()
            self.store.save_snapshot()
            self.store.journal.close()

    def stop(self) -> None:
        """End the daemon; jobs go on."""
        asyncio.get_running_loop().call_later(0.02, self._stopping.set)  # the answer to who asked for it goes out first

    async def _serve(self) -> None:
        timers = self._timers
        try:
            async with self._tasks:
                for work in (
                    timers.housekeeping,
                    timers.watch_hosts,
                    self._watch_shares,
                    self._planner.run,
                    self._answer_long,
                    self._until_stopped,
                ):
                    self._tasks.create_task(work())
        except* _Stopped:
            pass

    async def _watch_shares(self) -> None:
        """Use the shares file anew whenever it has changed."""
        while (file := self.settings.shares) is not None:
            await asyncio.sleep(SHARES_S)
            if file.changed():
                log.info("the shares have changed")
                self.shares = file.shares
                self.store.use_shares(file.shares)
                self._planner.news(0)
            self._note_shares()
            self.store.commit()

    def _note_shares(self) -> None:
        """Journal the entitlements; repeated, because the journal may not have been writable."""
        shares = self.shares
        members = {name: group.members for name, group in shares.groups.items()}
        stamp = self.store.stamp()
        self.store.observe(UseShares(**stamp, weights=shares.weights, quotas=shares.quotas, groups=members))

    async def _until_stopped(self) -> None:
        await self._stopping.wait()
        raise _Stopped

    def _start(self) -> None:
        settings, store = self.settings, self.store
        # A pool that has a history keeps the policy that was chosen last.
        policy = settings.policy or ("" if store.core.state.seq else self._default())
        socket = self.transport.listen_unix(str(settings.socket), shared=settings.shared, group=settings.group)
        self.endpoints.append(socket)
        if settings.tcp and settings.curve is not None:
            self.endpoints.append(self.transport.listen_tcp(settings.tcp, settings.curve))
        self._timers.poll_hosts()
        self._note_shares()
        if policy and policy != store.core.state.policy:
            self._runner.check(policy, {}, "")
            reason = "the daemon was started with it" if settings.policy else "the default of a new pool"
            store.command(UsePolicy(**store.stamp(), name=policy, reason=reason))
        if not store.commit():
            raise JournalError(str(store.failing))
        self._timers.set_alarm()
        self._planner.news(0)
        self.transport.start()
        state = store.core.state
        log.info(
            "pool %s: %d events (%d read), %d unfinished jobs, %d slots, policy %s, at %s",
            self.pool, state.seq, store.replayed, len(state.jobs), state.capacity, state.policy,
            ", ".join(self.endpoints),
        )  # fmt: skip

    def _id_of(self, name: str) -> int | None:
        """Return the UNIX id that this name belongs to; None if to none yet."""
        state = self.store.core.state
        if any(key.user == name for key in tuple(state.registered.values())):  # a copy: other threads ask
            return self.rights.ids.get(name, GUEST)
        return self.rights.ids.get(name, state.ids.get(name))

    def _registered(self, key: str) -> KeyRegistered | None:
        """Return the registration of a key while its term lasts."""
        found = self.store.core.state.registered.get(key)
        return found if found is not None and found.expires_at > self.store.now() else None

    def _default(self) -> str:
        shared = self.settings.shared or bool(self.settings.tcp)
        return policies.SHARED_DEFAULT if shared else policies.DEFAULT

    def switch_policy(self, stimulus: UsePolicy, context: Context) -> None:
        """Switch the policy if it can be made, and send the answer then."""
        if self.store.failing is not None:
            raise self.store.failing
        self._tasks.create_task(self._planner.switch(stimulus, context))

    def _admit(self, peer: Peer, frame: memoryview) -> bool:
        """Admit a request; if the peer exceeds its rate, refuse it with the time of the next try."""
        if self.rights.is_admin(peer.caller):
            return True
        if peer.allowance is None:
            peer.allowance = self._allowances.new()
        account = _account(peer)
        after_s = self._allowances.ask(account, peer.allowance, len(frame))
        if not after_s:
            return True
        self._counted.refused[TooFast.code, ""] += 1
        now = self._clock.monotonic()
        if self._allowances.overdrawn(account):
            self._refusals.add(peer.user, "connection", TooFast.code, f"{peer.user} {FLOODS}", None, now)
            self.transport.hang_up(peer)
            return False
        refusal = wire.Refused(code=TooFast.code, message=too_fast(peer.user, self.limits, after_s, self.rights.admins))
        self._note_refusal(peer, refusal, "")
        self._reply(Context(peer, wire.request_id(frame)), refusal)
        return False

    async def demand(self, at_most: int) -> wire.AnyAnswer:
        """Compute how many of `at_most` more slots the policy would give away."""
        return await self._planner.demand(at_most)

    def answer_later(self, answer: Awaitable[wire.AnyAnswer], context: Context) -> None:
        """Send the answer when it is ready."""
        self._tasks.create_task(self._answer_later(answer, context))

    async def _answer_later(self, answer: Awaitable[wire.AnyAnswer], context: Context) -> None:
        try:
            self._reply(context, await answer)
        except Exception as problem:
            self._reply(context, requests.refusal(problem, context))

    def metrics(self) -> wire.Metrics:
        """Return all figures of this daemon."""
        store, connections = self.store, self.transport.connections
        sources = metrics.Sources(
            counted=self._counted,
            plans=self._planner.took,
            commits=store.commits,
            lag=self._timers.lag,
            started_at=self.started_at,
            journal_bytes=store.journal.size,
            writable=store.failing is None,
            connections=len(connections),
            max_connections=connections.most,
            agents=len(self.agents),
        )
        problem = "" if store.failing is None else str(store.failing)
        return wire.Metrics(families=metrics.families(store.core.state, store.now(), sources), problem=problem)

    def _take(self, peer: Peer, frame: memoryview) -> None:
        """Answer a frame; the answer goes out with `_commit`."""
        began = time.thread_time()
        self._answer(peer, frame)
        self._spend(peer, began)

    def _spend(self, peer: Peer, began: float) -> None:
        """Charge the peer's user with the thread's time since `began`.

        Thread time, not the clock's: waits of the daemon on a busy machine are not the user's fault.
        """
        if peer.allowance is not None:
            self._allowances.spend(_account(peer), peer.allowance, (time.thread_time() - began) / UNIT_S)

    def _answer(self, peer: Peer, frame: memoryview) -> None:
        try:
            request = wire.decode_request(frame)
        except Exception as problem:  # ProtocolError, or what our decoder did not foresee: one frame, not the batch
            refusal = wire.Refused(code=getattr(problem, "code", ProtocolError.code), message=str(problem)[:500])
            self._put(Context(peer, wire.request_id(frame)), refusal, "")
            return
        context, asked = Context(peer, request.id), str(request.ask.__struct_config__.tag)
        if peer.surplus:
            text = too_many_connections(peer.user, self.limits, self.rights.admins)
            self._put(context, wire.Refused(code=TooMuch.code, message=text), "connection")
            return
        if peer.refusal:
            self._put(context, wire.Refused(code=NotAllowed.code, message=peer.refusal), "connection")
            return
        answer: requests.Answer
        try:
            answer = requests.answer(request.ask, self, context)
        except Exception as problem:
            answer = requests.refusal(problem, context, request.ask)
        if isinstance(answer, Generator):
            self._long.put(peer.user, (context, request.ask, answer), 0)
            self._any_long.set()
        elif answer is not None:
            self._put(context, answer, asked, getattr(request.ask, "job", None))

    async def _answer_long(self) -> None:
        """Build the long answers one after the other, each user in turn; other work goes on between their parts."""
        while await self._any_long.wait():
            context, ask, parts = self._long.take()
            if not self._long:
                self._any_long.clear()
            answer: wire.AnyAnswer | None = None
            while answer is None and not context.peer.gone:
                began = time.thread_time()
                try:
                    answer = _next_part(parts)
                except Exception as problem:
                    answer = requests.refusal(problem, context, ask)
                self._spend(context.peer, began)
                await asyncio.sleep(0)
            if answer is not None:
                self._put(context, answer, str(ask.__struct_config__.tag), getattr(ask, "job", None))
                self._commit()

    def _put(self, context: Context, answer: wire.AnyAnswer, asked: str, about: JobId | None = None) -> None:
        """Queue the answer to a request named `asked` for the next commit."""
        if isinstance(answer, wire.Refused):
            self._counted.refused[answer.code, asked] += 1
            self._note_refusal(context.peer, answer, asked, about)
        self._answers.append((context, answer))

    def _note_refusal(self, peer: Peer, answer: wire.Refused, asked: str, about: JobId | None = None) -> None:
        if answer.code in RECORDED:
            self._refusals.add(peer.user, asked, answer.code, answer.message, about, self._clock.monotonic())

    def _commit(self) -> None:
        """End a batch: put it on disk and send the answers."""
        answers, self._answers = self._answers, []
        self.store.commit(answers)

    def _reply(self, context: Context, answer: wire.AnyAnswer) -> None:
        try:
            frame = wire.encode(wire.AnswerMessage(id=context.request_id, answer=answer))
        except ProtocolError as problem:
            refusal = wire.Refused(code=problem.code, message=str(problem))
            frame = wire.encode(wire.AnswerMessage(id=context.request_id, answer=refusal))
        self.transport.send(context.peer, frame)

    def _committed(self, events: Sequence[Event], effects: Sequence[AnyEffect]) -> None:
        self.subscriptions.publish(events)
        self._counted.take(events, self.store.core.state)
        if keys := {event.data.key for event in events if isinstance(event.data, KeyRegistered | KeyRevoked)}:
            self.transport.peers.judge_again({Credentials(key=key) for key in keys})
        self.agents.execute(effects)
        if events:
            self._timers.set_alarm()
            if self.store.core.wants_plan:
                news = any(not isinstance(event.data, JobProgressed) for event in events)
                self._planner.news(events[-1].seq if news else 0)

    def _reloaded(self, problem: JournalError | None) -> None:
        """Send all orders again, as some may have been lost; end the daemon if the state can't be read."""
        self.agents.greet_again()
        if problem is not None:
            self._fatal = problem
            self._stopping.set()


def _next_part(parts: requests.LongAnswer) -> wire.AnyAnswer | None:
    """Build the next part; return the answer after the last one."""
    try:
        next(parts)
    except StopIteration as done:
        answer: wire.AnyAnswer = done.value
        return answer
    return None


def _account(peer: Peer) -> str:
    """Return the account of a peer's requests; an agent's reports count apart from its user's notebooks."""
    return peer.user if peer.role == "client" else f"{peer.user}\0{peer.role}"
