"""Finds ranks that wait for others: polls silent workers for their stacks, and judges these together."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from jupyter_elastic.engines.common.stalls import POLLS, sentence
from jupyter_elastic.engines.common.worker_processes import AttemptWorker
from jupyter_elastic.protocol.worker_messages import StackReport
from jupyter_elastic.worker import stacks

LOCKED = "(something there does not let go of Python's lock)"
STOPPED = "(process {pid} is stopped by a signal; `kill -CONT {pid}` lets it go on)"
END_STOPPED = 2
"""Multiple of the patience for which a worker may be stopped by a signal while others wait for it."""

log = logging.getLogger(__name__)


class WaitWatch:
    """Requests the stacks of `members` while the job sends nothing else for `patience_s`; 0: never.

    `ask` requests one member's stack. `labels`: names of other cells' lines -> displayed names.
    """

    def __init__(
        self,
        patience_s: float = 0.0,
        labels: Mapping[str, str] | None = None,
        ask: Callable[[AttemptWorker], None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.waits = ""
        """A sentence that says which ranks wait for which; empty while none does."""
        self.waited = ""
        """That sentence at the time when the attempt was told to end."""
        self.polls = 0
        """Number of polls so far."""
        self.patience_s = patience_s
        self.labels = labels or {}
        self._ask = ask
        self._now = now
        self._active_at = self._polled_at = now()

    def activity(self) -> None:
        """Record that a worker has sent something: the job goes on."""
        self._active_at, self.waits = self._now(), ""

    def tick(self, members: Sequence[AttemptWorker], ended: Sequence[int]) -> None:
        """Request the members' stacks, if it is time. `ended`: ranks whose cell has ended."""
        now, every_s = self._now(), self.patience_s / POLLS
        if not every_s or min(now - self._active_at, now - self._polled_at) < every_s:
            return
        if len(members) + len(ended) < 2:
            return
        self._judge(members, ended)
        self._polled_at = now
        self.polls += 1
        for member in members:
            if member.unanswered and member.process:
                member.process.send(stacks.DUMP)
            member.unanswered += 1
            self._ask(member)

    def answered(
        self, member: AttemptWorker, report: StackReport, members: Iterable[AttemptWorker], ended: Sequence[int]
    ) -> None:
        """Take a member's stack; judge when no other is missing."""
        member.stack, member.unanswered = msgspec.structs.replace(report, rank=member.rank), 0
        if not any(other.unanswered for other in members):
            self._judge(members, ended)

    def useless(self, members: Iterable[AttemptWorker]) -> list[AttemptWorker]:
        """Return workers that a signal has stopped for so long, while others waited, that the others leave them."""
        if not self.waits:
            return []
        before = self._now() - END_STOPPED * self.patience_s
        return [member for member in members if member.stopped_since is not None and member.stopped_since <= before]

    def _judge(self, members: Iterable[AttemptWorker], ended: Sequence[int]) -> None:
        """Judge who waits; a worker that missed two requests can't answer: its main thread holds Python's lock."""
        reports = []
        for member in members:
            stopped = member.process is not None and member.process.stopped()
            if not stopped:
                member.stopped_since = None
            elif member.stopped_since is None:
                member.stopped_since = self._now()
            report = msgspec.structs.replace(member.stack or StackReport(where="an unknown place"), rank=member.rank)
            reports.append(self._look_from_outside(member, report) if member.unanswered > 1 else report)
        before, self.waits = self.waits, sentence(reports, ended, self.patience_s)
        if self.waits and not before:
            found = "".join(f"\nrank {report.rank}:\n  " + "\n  ".join(report.stack) for report in reports)
            log.warning("%s%s", self.waits, found)

    def _look_from_outside(self, member: AttemptWorker, last: StackReport) -> StackReport:
        """Return the stack of a worker that can't answer: the one that it was made to write, else its last answer."""
        pid, _ = (member.process and member.process.known) or (0, 0.0)
        if pid and member.stopped_since is not None:
            return msgspec.structs.replace(last, held=False, where=f"{last.where} {STOPPED.format(pid=pid)}")
        found = None
        if pid:
            with contextlib.suppress(OSError):
                found = stacks.dumped(pid, member.stack_file, self.labels)
        if found:
            still_s = member.unanswered * self.patience_s / POLLS
            where = f"{found.where} {LOCKED}"
            member.stack = msgspec.structs.replace(found, rank=last.rank, where=where, held=False, still_s=still_s)
            return member.stack
        if LOCKED in last.where:
            return last
        return msgspec.structs.replace(last, held=False, where=f"{last.where} when it last answered {LOCKED}")
