"""Step stimuli in memory and put the events on disk in batches: one transaction for all that came together.

No event leaves the daemon before it is on disk: a commit passes on the answers, the events and the orders. After a
failed commit the state is read again from the journal, so that memory never knows more than the disk; reports are then
held back until the disk takes writes again, and commands are refused. Knows core and journal; must not know sockets.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.shares import Shares
from jupyter_elastic.scheduler.clock import Clock
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.scheduler.journal.restore import LONG, restore, save_snapshot
from jupyter_elastic.scheduler.metrics import SHORT_S, Histogram
from jupyter_elastic.scheduler.net.peers import Peer
from jupyter_elastic.types import AnyEffect, Event, Stimulus
from jupyter_elastic.types.errors import BadRequest, ElasticError, JournalError

HELD = 10_000
"""Maximum number of reports held back while the journal can't be written."""

log = logging.getLogger(__name__)


class Context(NamedTuple):
    """Request that is being answered, and its peer."""

    peer: Peer
    request_id: int


Answers: TypeAlias = Sequence[tuple[Context, wire.AnyAnswer]]


class StateStore:
    """The core, its journal, and what was stepped since the last commit."""

    def __init__(self, journal: Journal, shares: Shares, clock: Clock, *, lease_s: float = 0.0) -> None:
        """Read the state from the journal. JournalError if that is damaged."""
        self.journal = journal
        self.core, self.replayed = restore(journal, shares, lease_s)
        self.commits = Histogram(SHORT_S)
        """Seconds that putting events on disk took."""
        self.failing: JournalError | None = None
        """Reason why nothing can be written now; None if writes work."""
        self.reply: Callable[[Context, wire.AnyAnswer], None] = lambda _context, _answer: None
        self.committed: Callable[[Sequence[Event], Sequence[AnyEffect]], None] = lambda _events, _effects: None
        """Called after each commit with the events that are on disk now, and the orders that follow."""
        self.reloaded: Callable[[JournalError | None], None] = lambda _fatal: None
        """Called after the state was read again, as orders may have been lost; with the reason if reading failed."""
        self._shares, self._lease_s = shares, lease_s
        self._clock = clock
        clock.not_before(self.core.state.at)
        self._prefix = f"{os.getpid()}.{int(clock.now() * 1000):x}"
        self._ids = 0
        self._events: list[Event] = []
        self._effects: list[AnyEffect] = []
        self._reports: list[tuple[Stimulus, Context | None]] = []
        """Reports of this batch; they are held back if its commit fails."""
        self._held: list[tuple[Stimulus, Context | None]] = []
        self._snapshot_seq = self.core.state.seq - self.replayed

    def now(self) -> float:
        """Return the wall time."""
        return self._clock.now()

    def stamp(self, by: str = "daemon") -> dict[str, Any]:
        """Return the fields that every stimulus has: time, author and id."""
        self._ids += 1
        return {"at": self.now(), "by": by, "id": f"{self._prefix}.{self._ids}"}

    def use_shares(self, shares: Shares) -> None:
        """Use these shares from now on."""
        self._shares = shares
        self.core.share(shares.weights, shares.quotas, shares.most)

    def command(self, stimulus: Stimulus) -> None:
        """Step a command. Raises what the core raises, and JournalError while nothing can be written."""
        if self.failing is not None:
            raise self.failing
        self._step(stimulus)

    def report(self, stimulus: Stimulus, context: Context | None = None) -> bool:
        """Step a report. False while nothing can be written: then it is held back, and answered once on disk."""
        if self.failing is not None:
            if len(self._held) >= HELD:
                raise self.failing
            self._held.append((stimulus, context))
            return False
        self._step(stimulus)
        self._reports.append((stimulus, context))
        return True

    def observe(self, stimulus: Stimulus) -> None:
        """Step an observation that the daemon will repeat: it is never held back, and no error is raised."""
        if self.failing is None:
            with contextlib.suppress(ElasticError):
                self._step(stimulus)

    def commit(self, answers: Answers = ()) -> bool:
        """Put the batch on disk, then send the answers. False if that failed; then every answer is the reason."""
        events, effects = self._events, self._effects
        self._events, self._effects = [], []
        began = self._clock.monotonic()
        try:
            self.journal.append(events)
        except JournalError as problem:
            log.error("%s", problem)  # noqa: TRY400 - its text says all
            self.failing = problem
            self._held += self._reports
            self._read_again()
            held = {context for _, context in self._held}
            for context, _ in answers:
                if context not in held:
                    self.reply(context, wire.Refused(code=problem.code, message=str(problem)))
            return False
        if events:
            self.commits.observe(self._clock.monotonic() - began)
        self._reports.clear()
        for context, answer in answers:
            self.reply(context, answer)
        self.committed(events, effects)
        return True

    def try_again(self) -> bool:
        """Retry after a failure; True if writes work again, and the reports held back are stepped and answered."""
        if self.failing is None or not self.journal.probe():
            return False
        log.info("the journal can be written again; %d reports were held", len(self._held))
        self.failing = None
        held, self._held = self._held, []
        self._read_again()
        for stimulus, context in held:
            with contextlib.suppress(ElasticError):
                self._step(stimulus)
            self._reports.append((stimulus, context))
        self.commit([(context, wire.Done()) for _, context in held if context is not None])
        return True

    def save_snapshot(self, every: int = LONG) -> None:
        """Write a snapshot if more than `every` events are in none."""
        if self.failing is None and self.core.state.seq - self._snapshot_seq > every:
            self._snapshot_seq = self.core.state.seq
            save_snapshot(self.journal, self.core)

    def _step(self, stimulus: Stimulus) -> None:
        try:
            events, effects = self.core.step(stimulus)
        except ElasticError:
            raise
        except Exception:
            # The state may be half written: keep what was whole, and read it again without this stimulus.
            about = {"user": stimulus.by, "job": getattr(stimulus, "job", None)}
            log.exception("the core failed on %.500r", stimulus, extra=about)
            with contextlib.suppress(JournalError):
                self.journal.append(self._events)
            self._read_again()
            raise BadRequest("an error in the daemon; its log has the details") from None
        self._events += events
        self._effects += effects

    def _read_again(self) -> None:
        """Read the state from the journal: what is not on disk did not happen."""
        self._events, self._effects, self._reports = [], [], []
        try:
            self.core, _ = restore(self.journal, self._shares, self._lease_s)
        except JournalError as problem:
            self.reloaded(problem)
        else:
            self.reloaded(None)
