"""Reports what an attempt's workers do: that they run, their progress, deaths and replacements."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal, TypeAlias

from jupyter_elastic.driver.engine import SendReport
from jupyter_elastic.engines.common.attempt_state import AttemptState
from jupyter_elastic.engines.common.engine_hooks import EngineHooks
from jupyter_elastic.engines.common.worker_processes import AttemptWorker
from jupyter_elastic.types import (
    DeathReported,
    ExitReported,
    Progress,
    ProgressReported,
    ReplacementReported,
    Report,
    RunningReported,
    SlotId,
)

Outcome: TypeAlias = Literal["completed", "failed", "cancelled", "preempted", "lost"]


class AttemptReporter:
    """The reports of one attempt, in their order; after the end there are none."""

    def __init__(self, attempt: AttemptState, engine: EngineHooks, send: SendReport) -> None:
        self._attempt = attempt
        self._engine = engine
        self._send = send
        self.ended = False
        self.restarting_since: float | None = None
        """Time at which the workers of a resumable cell were last told to end; None when all wanted workers run."""
        self._last: RunningReported | None = None
        """The last report that the members train."""
        self._step: int | None = None
        self._deaths = 0
        self._vacant: dict[SlotId, tuple[float, int, int]] = {}
        """Slots whose worker died: time of the death, rank, the number of that death."""

    def report(self, report: Report) -> None:
        """Send a report to the driver, unless the attempt has ended."""
        if not self.ended:
            self._send(report)

    def running(self, generation: int, slots: tuple[SlotId, ...], pause_s: float = 0.0) -> None:
        """Report that the members train."""
        self._last = RunningReported(
            generation=generation,
            slots=slots,
            pause_s=pause_s,
            elastic=self._engine.elastic(),
            **self._attempt.about,
        )
        self.report(self._last)

    def progress(self, progress: Progress) -> None:
        """Report a worker's progress."""
        self.is_running()
        self._step = progress.step
        self.report(ProgressReported(progress=progress, **self._attempt.about))

    def maybe_elastic(self) -> None:
        """Report a cell that came to its loop after it was reported running: from now on its size may change."""
        last = self._last
        if last is not None and last.elastic is not True and self._engine.elastic() and not self._attempt.stopping:
            self.running(last.generation, last.slots, last.pause_s)

    def maybe_running(self) -> None:
        """Report a fulfilled command of a job without groups: every wanted worker runs its cell."""
        attempt, machine = self._attempt, self._attempt.machine
        wanted, generation = machine.wanted, machine.generation
        groups = self._engine.capabilities.forms_groups and (attempt.cell.forms_groups or machine.regroups)
        known = self._last is not None and self._last.generation >= generation and self.restarting_since is None
        if attempt.stopping or known or (groups and not machine.resumable):
            return
        if wanted and {m.slot for m in attempt.members.values() if m.running and not m.terminating} >= set(wanted):
            pause_s = 0.0 if self.restarting_since is None else time.time() - self.restarting_since
            self.restarting_since = None
            self.replaced(wanted)
            self.running(generation, wanted, pause_s)

    def is_running(self) -> None:
        """Report, as a worker made progress, that the attempt runs, whether or not there was a group."""
        if self._last is None:
            self.running(self._attempt.machine.generation, self._attempt.machine.wanted)

    def died(self, member: AttemptWorker, cause: str, empty: tuple[SlotId, ...] = ()) -> None:
        """Report a death after which the attempt goes on; a joining worker's death may leave slots `empty`."""
        self._deaths += 1
        self._vacant[member.slot] = (time.monotonic(), member.rank, self._deaths)
        self.report(
            DeathReported(
                count=self._deaths,
                rank=member.rank,
                slot=member.slot,
                cause=cause,
                step=self._step,
                empty=empty,
                generation=self._attempt.machine.generation,
                **self._attempt.about,
            )
        )

    def replaced(self, slots: Iterable[SlotId]) -> None:
        """Report the replacement of dead workers on these slots, where workers take part now."""
        for slot in slots:
            if slot in self._vacant:
                since, rank, count = self._vacant.pop(slot)
                after_s = time.monotonic() - since
                about = self._attempt.about
                self.report(ReplacementReported(count=count, rank=rank, slot=slot, after_s=after_s, **about))

    def rescaled(self, slots: Iterable[SlotId]) -> None:
        """Forget the deaths on other slots than these: nobody replaces those workers."""
        self._vacant = {slot: death for slot, death in self._vacant.items() if slot in slots}

    def end(self, outcome: Outcome, reason: str) -> None:
        """Report the end of the attempt."""
        self.ended = True
        session = self._attempt.session
        pins = session.pins() if session is not None else {}
        self._send(ExitReported(outcome=outcome, reason=reason[:2000], **pins, **self._attempt.about))
