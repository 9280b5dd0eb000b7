"""Finds how an attempt ends: collects failures and deaths, names the cause, and waits until no worker lives."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable

import msgspec

from jupyter_elastic.engines.common import deaths
from jupyter_elastic.engines.common.attempt_reporter import AttemptReporter, Outcome
from jupyter_elastic.engines.common.attempt_state import AttemptState
from jupyter_elastic.engines.common.failures import LINE, Failures, Weight, ended_early
from jupyter_elastic.engines.common.worker_endings import WorkerEndings
from jupyter_elastic.engines.common.worker_processes import FAIL, INTERRUPT, RAISED, AttemptWorker
from jupyter_elastic.hosts.attempt_hosts import host_of
from jupyter_elastic.jobfiles import failure
from jupyter_elastic.jobfiles.failure import DIED, Failure
from jupyter_elastic.platform import processes
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.types import ReleaseReported, SlotId
from jupyter_elastic.types.errors import ElasticError

COLLECT_S = 0.15
"""Seconds after the first failure in which others are collected, so that the cause is named and not a consequence."""
CAUSE_S = 1.0
"""Seconds to wait for the cause of a broken group, such as a death of which the news is still to come."""


class AttemptOutcome:
    """The failures, deaths and end of one attempt. `end` reports the end, once."""

    def __init__(
        self,
        attempt: AttemptState,
        reporter: AttemptReporter,
        endings: WorkerEndings,
        end: Callable[[Outcome, str], None],
    ) -> None:
        self._attempt = attempt
        self._reporter = reporter
        self._endings = endings
        self.end = end
        self._failures = Failures()
        self._oom_kills: float = math.inf
        """Out-of-memory kills on this machine before this attempt."""
        self._releasing: set[asyncio.Task[None]] = set()
        self.without_hosts = ""
        """Reason to end the attempt because too few hosts are left."""
        self.last_left: tuple[AttemptWorker, int | None] = (AttemptWorker("", "", 0), None)
        """The last worker that left unasked, and its exit code."""

    def begin(self) -> None:
        """Count the out-of-memory kills so far."""
        self._oom_kills = deaths.oom_kills()

    # --- failures

    def fail(self, weight: Weight, failed: Failure) -> None:
        """Record a failure; a moment later the attempt ends with the one that is nearest to the cause."""
        if not self._failures:
            self._attempt.spawn_task(self._end_failed())
        self._failures.add(weight, failed)

    def worker_failed(self, member: AttemptWorker, problem: ElasticError, kind: str = "EngineError") -> None:
        """Record that a worker can't be used, unless the others go on without it."""
        failed = Failure(rank=member.rank, type=kind, message=str(problem))
        if not self.spares(member, failed):
            self.fail(Weight.RAISED, failed)

    def raised(self, member: AttemptWorker, message: messages.Failed) -> None:
        """Record the failure of a worker's cell."""
        echo = message.echo or self._another_died(member)
        self.fail(Weight.BROKEN_GROUP if echo else Weight.RAISED, failure_of(message))

    def forget(self) -> None:
        """Forget the failures so far, as a death has caused them and the workers start anew."""
        self._failures = Failures()

    def spares(self, member: AttemptWorker, failed: Failure) -> bool:
        """Return True if the others go on without a failed worker: it was sent away, or took no step with them."""
        machine = self._attempt.machine
        if machine.removed(member.name) and not member.was_member:
            return True
        if actions := machine.failed(member.name):
            member.failed = _in_short(failed)
            self._attempt.do(actions)
        return bool(actions)

    def _another_died(self, member: AttemptWorker) -> bool:
        """Return True if another worker's process has ended, or was killed before: later failures explain nothing."""
        members = self._attempt.members.values()
        others = [m for m in members if m is not member and not (m.done or m.terminating)]
        known = [m.process.known for m in others if m.process is not None and m.process.known is not None]
        return self._failures.killed or any(map(processes.ending, known))

    async def _end_failed(self) -> None:
        await asyncio.sleep(COLLECT_S)
        loop = asyncio.get_running_loop()
        until = loop.time() + CAUSE_S
        while self._failures and not self._failures.explained and loop.time() < until:  # noqa: ASYNC110 - many ways to end
            await asyncio.sleep(COLLECT_S / 10)
        if self._failures:  # else a death was the cause, and a restart the answer
            await self._endings.end_all(RAISED if self._attempt.session is None else INTERRUPT)

    # --- deaths

    def left_unasked(self, member: AttemptWorker, code: int | None) -> None:
        """Record a worker that has left though nobody told it to: it may be the cause of the end."""
        self.last_left = (member, code)
        if self._failures:  # this worker may have died first, though its news came last
            self._failures.add(*self.death(member, code))

    def died(self, member: AttemptWorker, code: int | None) -> None:
        """Report the death of a worker, unless its own failure or another one ends the attempt."""
        if not (self._failures or member.failed):
            self._reporter.died(member, self._cause(member, code))

    def drop(self, name: str, slots: tuple[SlotId, ...]) -> None:
        """End a joining worker without which the others go on, and report why."""
        left, code = self.last_left
        member = self._attempt.members.get(name, left)
        if not member.failed:
            gone = f"the worker {self._cause(member, code)}"
            member.failed = gone if member is left else "no step was taken in a group with it"
        self._reporter.died(member, member.failed, slots)
        self._attempt.workers.kill(name)
        (self._attempt.context.folder / "results" / f"rank.{member.rank}.pickle").unlink(missing_ok=True)

    def gave_up(self, why: str, name: str = "") -> None:
        """End the attempt because its workers can't go on, for a reason of `group_actions.GiveUp`."""
        last, code = self.last_left
        if why == "left early":
            other = next((m.rank for m in self._attempt.members.values() if not m.done), 0)
            self.fail(Weight.GONE, ended_early(self._attempt.through[name], other))
            return
        if why == "host lost":  # no fault of the cell's: the job begins anew on other hosts
            host = host_of(last.slot)
            lost = f"host {host} was lost: {self._attempt.hosts.why_lost(f'{host}:0')}"
            self.without_hosts = self.without_hosts or lost
            self._attempt.stopping = self._attempt.stopping or "preempt"
            self._attempt.spawn_task(self._endings.end_all(FAIL))
            return
        weight, death = self.death(last, code)
        if why == "too often":
            since = "soon after each restart" if self._attempt.machine.resumable else "without a commit between"
            message = f"{death.message}; workers died again and again {since}"
            death = msgspec.structs.replace(death, message=message)
        self.fail(weight, death)

    def _cause(self, member: AttemptWorker, code: int | None) -> str:
        return member.killed_because or deaths.cause(code, oom=deaths.oom_kills() > self._oom_kills)

    def death(self, member: AttemptWorker, code: int | None) -> tuple[Weight, Failure]:
        """Return a worker's death as a failure."""
        text = deaths.describe(member.rank, code, oom=deaths.oom_kills() > self._oom_kills)
        if code is None and member.killed_because:
            text = f"rank {member.rank}: the worker {member.killed_because}"
        stderr = self._attempt.context.folder / f"rank.{member.rank}" / "stderr"
        stack = deaths.crash(stderr, code, self._attempt.watch.labels)
        traceback = f"{text}\n{stack}" if stack else ""
        weight = Weight.GONE if code is None or code < 0 else Weight.EXITED
        return weight, Failure(rank=member.rank, type=DIED, message=text, traceback=traceback)

    # --- the end

    def release(self, slot: SlotId) -> None:
        """Report the slot released as soon as nothing of the attempt lives there."""
        self._releasing.add(self._attempt.spawn_task(self._release(slot)))

    async def _release(self, slot: SlotId) -> None:
        await self._attempt.workers.all_cleared()
        await self._attempt.hosts.fenced(slot)
        self._reporter.report(ReleaseReported(slots=(slot,), **self._attempt.about))

    def maybe_over(self) -> None:
        """Finish the attempt if no worker lives and none will be started."""
        attempt = self._attempt
        if not (attempt.over or attempt.reaching or attempt.workers.busy) and attempt.machine.over:
            attempt.over = True
            attempt.spawn_task(self._finish())

    async def _finish(self) -> None:
        attempt = self._attempt
        cause = self._failures.cause(attempt.through.values()) if self._failures else None
        lost = await asyncio.to_thread(attempt.session.close) if attempt.session is not None else ""
        if cause is not None and lost and lost not in cause.message:
            cause = msgspec.structs.replace(cause, message=f"{cause.message}; {lost}", others=(*cause.others, lost))
        if cause is not None and not attempt.stopping:
            failure.write(attempt.context.folder, cause)
        outcome, reason = self._outcome(cause)
        if outcome != "completed":
            await attempt.flusher.bring()
        await asyncio.to_thread(attempt.commits.release, keep=outcome != "completed")
        if self._releasing:
            await asyncio.wait(self._releasing)
        await attempt.hosts.close()
        self.end(outcome, reason or lost)

    def _outcome(self, cause: Failure | None) -> tuple[Outcome, str]:
        stopping, through = self._attempt.stopping, self._attempt.through
        if stopping == "time limit":
            return "failed", self._attempt.watch.waited
        if stopping == "cancel":
            return "cancelled", ""
        if self._attempt.session is not None and stopping == "preempt":
            why = "the pool took its slots, and a session's cell is never run twice; the variables are kept"
            return "failed", why
        if cause is not None:
            return "failed", cause.reason
        if self.without_hosts and not through:
            return "lost", self.without_hosts
        return ("preempted" if stopping and not through else "completed"), ""


def failure_of(message: messages.Failed | messages.Interrupted) -> Failure:
    """Return the failure that a worker has reported of its cell."""
    return Failure(rank=message.rank, type=message.error, message=message.message, traceback=message.traceback)


def _in_short(failed: Failure) -> str:
    """Return a failure as a line, such as `ValueError: 7, line 4 of the cell`, whose lines begin its traceback."""
    text = ": ".join(filter(None, (failed.type, " ".join(failed.message.split())[:LINE])))
    frames = re.findall(r'File "(.*?)", line (\d+)', failed.traceback.rpartition("Traceback (")[2])
    return text + "".join([f", line {line} of the cell" for file, line in frames if file == frames[0][0]][-1:])
