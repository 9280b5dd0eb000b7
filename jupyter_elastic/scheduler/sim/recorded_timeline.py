"""Build timelines of jobs from the event stream: the same fold for a simulated run and for a pool's own journal.

Knows the events of `types`; must not know their author.
"""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_elastic.scheduler.sim.schedule_metrics import JobTimeline, Span
from jupyter_elastic.types import (
    Event,
    JobEnded,
    JobStarted,
    JobSubmitted,
    RescaleRequested,
    SlotsReleased,
)


class Fold:
    """A timeline for each job, built from events; slots count until they are released."""

    def __init__(self) -> None:
        self.timelines: dict[int, JobTimeline] = {}
        self._held: dict[int, set[str]] = {}
        self._since: dict[int, float] = {}

    def see(self, events: Iterable[Event]) -> None:
        """Fold further events, in order."""
        for event in events:
            data, at = event.data, event.at
            if isinstance(data, JobSubmitted):
                self.timelines[data.job] = JobTimeline(data.spec.name, at, deadline=data.spec.deadline_at, outcome="")
                self._held[data.job] = set()
            elif isinstance(data, JobStarted):
                timeline = self.timelines[data.job]
                if timeline.started is None:
                    timeline.started = at
                else:
                    timeline.restarts += 1
                self._hold(data.job, at, set(data.slots))
            elif isinstance(data, RescaleRequested):
                self.timelines[data.job].restarts += 1
                self._hold(data.job, at, self._held[data.job] | set(data.slots))
            elif isinstance(data, SlotsReleased):
                self._hold(data.job, at, self._held[data.job] - set(data.slots))
            elif isinstance(data, JobEnded):
                self._hold(data.job, at, set())
                timeline = self.timelines[data.job]
                timeline.outcome = data.outcome
                timeline.ended = at

    def _hold(self, job: int, at: float, slots: set[str]) -> None:
        held = self._held[job]
        if len(held) != len(slots):
            if held and at > self._since[job]:
                self.timelines[job].spans.append(Span(self._since[job], at, len(held)))
            self._since[job] = at
        self._held[job] = slots
