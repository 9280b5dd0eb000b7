"""Keeps the reports of an attempt that still matter to an agent that connects; makes the driver's own reports."""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_elastic.types import (
    DeathReported,
    ExitReported,
    JobId,
    Launch,
    ProgressReported,
    ReleaseReported,
    ReplacementReported,
    Report,
    RunningReported,
    SlotId,
)

ORDER: tuple[type[Report], ...] = (
    RunningReported,
    ReleaseReported,
    ProgressReported,
    DeathReported,
    ReplacementReported,
)


class Reports:
    """The last report of each kind."""

    def __init__(self, launch: Launch) -> None:
        self.exit: ExitReported | None = None
        self._launch = launch
        self._last: dict[type[Report], Report] = {}
        self._released: dict[SlotId, None] = {}

    def add(self, report: Report, generation: int) -> Report:
        """Keep a report; return it as it goes to the agent. `generation` is the one that the engine knows."""
        if isinstance(report, ReleaseReported):
            if report.generation is None:
                report = msgspec.structs.replace(report, generation=generation)
            self._released |= dict.fromkeys(report.slots)
        else:
            self._last[type(report)] = report
        return report

    def leased_again(self, slots: tuple[SlotId, ...]) -> None:
        """Forget that these slots were released: they were given to the attempt again."""
        for slot in slots:
            self._released.pop(slot, None)

    def snapshot(self, generation: int) -> list[Report]:
        """Return all reports that still matter, except the end, in the order in which an engine sends them."""
        last = dict(self._last)
        if self._released:
            last[ReleaseReported] = self.release(tuple(self._released), generation)
        return [last[kind] for kind in ORDER if kind in last]

    def release(self, slots: tuple[SlotId, ...], generation: int) -> ReleaseReported:
        """Make the report of a release by the driver itself."""
        job, attempt = self._launch.job, self._launch.attempt
        return ReleaseReported(job=job, attempt=attempt, slots=slots, generation=generation)

    def end(self, outcome: Any, reason: str, engines: ExitReported | None = None) -> None:
        """Record the end of the attempt; only the first counts. `engines`: the engine's own report of it, if any."""
        if self.exit is None:
            self.exit = exit_report(self._launch.job, self._launch.attempt, outcome, reason)
            if engines is not None:
                pins = {name: getattr(engines, name) for name in ("pinned", "pinned_why", "pinned_s")}
                self.exit = msgspec.structs.replace(self.exit, **pins)


def exit_report(job: JobId, attempt: int, outcome: Any, reason: str) -> ExitReported:
    """Return the report of an attempt's end."""
    return ExitReported(job=job, attempt=attempt, outcome=outcome, reason=reason[:10_000])
