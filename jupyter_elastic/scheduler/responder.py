"""Answer the frames of peers: who may ask how much, what is answered later, and what an answer costs its user.

Answers are kept until the batch of frames that they came with is on disk. Knows frames and users' allowances; must not
know what a request means.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler import metrics, requests
from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.journal.refusals import Refusals
from jupyter_elastic.scheduler.journal.state_store import Context, StateStore
from jupyter_elastic.scheduler.net.fair_queue import FairQueue
from jupyter_elastic.scheduler.net.peers import Peer
from jupyter_elastic.scheduler.net.rate_limits import UNIT_S, Allowances, Limits, too_fast, too_many_connections
from jupyter_elastic.scheduler.net.transport import Transport
from jupyter_elastic.types import JobId
from jupyter_elastic.types.errors import BadRequest, NotAllowed, NotFound, ProtocolError, TooFast, TooMuch

RECORDED = frozenset({BadRequest.code, NotAllowed.code, NotFound.code, TooFast.code, TooMuch.code})
"""Codes of refusals that the journal keeps: those caused by the user, not by the daemon's own problems."""

FLOODS = "floods the pool with asks and is hung up on"


class Responder:
    """Answers of one daemon; `transport` and `parts` are set before the first frame."""

    transport: Transport
    parts: requests.Parts

    def __init__(
        self,
        limits: Limits,
        rights: Rights,
        store: StateStore,
        monotonic: Callable[[], float],
        counted: metrics.Counted,
        refusals: Refusals,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.allowances = Allowances(limits.asks_per_s, monotonic)
        self._limits, self._rights, self._store, self._monotonic = limits, rights, store, monotonic
        self._counted, self._refusals, self._tasks = counted, refusals, tasks
        self._answers: list[tuple[Context, wire.AnyAnswer]] = []
        self._long: FairQueue[tuple[Context, wire.AnyAsk, requests.LongAnswer]] = FairQueue()
        self._any_long = asyncio.Event()

    def admit(self, peer: Peer, frame: memoryview) -> bool:
        """Admit a request; if the peer exceeds its rate, refuse it with the time of the next try."""
        if self._rights.is_admin(peer.caller):
            return True
        if peer.allowance is None:
            peer.allowance = self.allowances.new()
        account = _account(peer)
        after_s = self.allowances.ask(account, peer.allowance, len(frame))
        if not after_s:
            return True
        self._counted.refused[TooFast.code, ""] += 1
        now = self._monotonic()
        if self.allowances.overdrawn(account):
            self._refusals.add(peer.user, "connection", TooFast.code, f"{peer.user} {FLOODS}", None, now)
            self.transport.hang_up(peer)
            return False
        refusal = wire.Refused(
            code=TooFast.code, message=too_fast(peer.user, self._limits, after_s, self._rights.admins)
        )
        self._note_refusal(peer, refusal, "")
        self.reply(Context(peer, wire.request_id(frame)), refusal)
        return False

    def take(self, peer: Peer, frame: memoryview) -> None:
        """Answer a frame; the answer goes out with `commit`."""
        began = time.thread_time()
        self._answer(peer, frame)
        self._spend(peer, began)

    def _spend(self, peer: Peer, began: float) -> None:
        """Charge the peer's user with the thread's time since `began`.

        Thread time, not the clock's: waits of the daemon on a busy machine are not the user's fault.
        """
        if peer.allowance is not None:
            self.allowances.spend(_account(peer), peer.allowance, (time.thread_time() - began) / UNIT_S)

    def _answer(self, peer: Peer, frame: memoryview) -> None:
        try:
            request = wire.decode_request(frame)
        except Exception as problem:  # ProtocolError, or what our decoder did not foresee: one frame, not the batch
            refusal = wire.Refused(code=getattr(problem, "code", ProtocolError.code), message=str(problem)[:500])
            self._put(Context(peer, wire.request_id(frame)), refusal, "")
            return
        context, asked = Context(peer, request.id), str(request.ask.__struct_config__.tag)
        if peer.surplus:
            text = too_many_connections(peer.user, self._limits, self._rights.admins)
            self._put(context, wire.Refused(code=TooMuch.code, message=text), "connection")
            return
        if peer.refusal:
            self._put(context, wire.Refused(code=NotAllowed.code, message=peer.refusal), "connection")
            return
        answer: requests.Answer
        try:
            answer = requests.answer(request.ask, context, self.parts)
        except Exception as problem:
            answer = requests.refusal(problem, context, request.ask)
        if isinstance(answer, Generator):
            self._long.put(peer.user, (context, request.ask, answer), 0)
            self._any_long.set()
        elif isinstance(answer, Awaitable):
            self._tasks.create_task(self._answer_later(answer, context))
        elif answer is not None:
            self._put(context, answer, asked, getattr(request.ask, "job", None))

    async def _answer_later(self, answer: Awaitable[wire.AnyAnswer], context: Context) -> None:
        try:
            self.reply(context, await answer)
        except Exception as problem:
            self.reply(context, requests.refusal(problem, context))

    async def run(self) -> None:
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
                self.commit()

    def _put(self, context: Context, answer: wire.AnyAnswer, asked: str, about: JobId | None = None) -> None:
        """Queue the answer to a request named `asked` for the next commit."""
        if isinstance(answer, wire.Refused):
            self._counted.refused[answer.code, asked] += 1
            self._note_refusal(context.peer, answer, asked, about)
        self._answers.append((context, answer))

    def _note_refusal(self, peer: Peer, answer: wire.Refused, asked: str, about: JobId | None = None) -> None:
        if answer.code in RECORDED:
            self._refusals.add(peer.user, asked, answer.code, answer.message, about, self._monotonic())

    def commit(self) -> None:
        """End a batch: put it on disk and send the answers."""
        answers, self._answers = self._answers, []
        self._store.commit(answers)

    def reply(self, context: Context, answer: wire.AnyAnswer) -> None:
        """Send an answer."""
        try:
            frame = wire.encode(wire.AnswerMessage(id=context.request_id, answer=answer))
        except ProtocolError as problem:
            refusal = wire.Refused(code=problem.code, message=str(problem))
            frame = wire.encode(wire.AnswerMessage(id=context.request_id, answer=refusal))
        self.transport.send(context.peer, frame)


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
