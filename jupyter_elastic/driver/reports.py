"""Keeps what an attempt has reported and still matters to an agent that connects; makes the reports of a driver."""

from __future__ import annotations

import time
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
        """Keep a report; as it goes to the agent. `generation`: what the engine knows."""
        if isinstance(report, ReleaseReported):
            if report.generation is None:
                report = msgspec.structs.replace(report, generation=generation)
            self._released |= dict.fromkeys(report.slots)
        else:
            self._last[type(report)] = report
        return report

    def leased_again(self, slots: tuple[SlotId, ...]) -> None:
        """These slots were given to the attempt: that they were released is over."""
        for slot in slots:
            self._released.pop(slot, None)

    def snapshot(self, generation: int) -> list[Report]:
        """All that still matters, in the order in which an engine reports it; the end is not among it."""
        last = dict(self._last)
        if self._released:
            last[ReleaseReported] = self.release(tuple(self._released), generation)
        return [last[kind] for kind in ORDER if kind in last]

    def release(self, slots: tuple[SlotId, ...], generation: int) -> ReleaseReported:
        """A release by the driver itself."""
        launch = self._launch
        return ReleaseReported(
            at=time.time(),
            by=launch.owner,
            id=f"release-{launch.job}-{launch.attempt}-{generation}",
            job=launch.job,
            attempt=launch.attempt,
            slots=slots,
            generation=generation,
        )

    def end(self, outcome: Any, reason: str, engines: ExitReported | None = None) -> None:
        """The attempt has ended; only the first end counts. `engines`: how the engine has said it, if it has."""
        if self.exit is None:
            launch, at = self._launch, time.time() if engines is None else engines.at
            self.exit = exit_report(launch.job, launch.attempt, launch.owner, outcome, reason, at)
            if engines is not None:
                pins = {name: getattr(engines, name) for name in ("pinned", "pinned_why", "pinned_s")}
                self.exit = msgspec.structs.replace(self.exit, **pins)


def exit_report(job: JobId, attempt: int, owner: str, outcome: Any, reason: str, at: float) -> ExitReported:
    """The end of an attempt; always the same `id`, so that it counts once whoever reports it."""
    return ExitReported(
        at=at, by=owner, id=f"exit-{job}-{attempt}", job=job, attempt=attempt, outcome=outcome, reason=reason[:10_000]
    )
