"""Balanced: minimums to the shortest, slots where they bring completions soonest, changes only where they pay.

Sources: the order is SRPT with Tiresias' least attained service (NSDI 2019) where nobody knows a length; growth is the
greedy marginal gain of Optimus (EuroSys 2018), weighed by 1 / remaining time as heSRPT (Berg et al., 2020) does for
concave speed-ups: a slot goes where it raises the rate of completions most, not where the most seconds are left.
A running job keeps what nobody wants; a change must save several times the job's own measured rescale cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

from msgspec import Meta

from jupyter_elastic.scheduler.policies.common import Draft, Ratio
from jupyter_elastic.scheduler.policies.elastic import Guard, Guarded, Value, climb, seated, settle
from jupyter_elastic.scheduler.policies.order import shortest_first
from jupyter_elastic.scheduler.policies.speed import rates, work_left
from jupyter_elastic.types import JobView, Plan, View


class Balanced:
    """Short average turnaround and a full pool."""

    name: ClassVar[str] = "balanced"
    summary: ClassVar[str] = "Short jobs soon, slots where they speed up most, changes only where they pay (default)."
    work_conserving: ClassVar[bool] = False
    interval_s: ClassVar[float | None] = 10.0

    class Options(Guarded, frozen=True):
        """What can be set."""

        aging: Annotated[
            float, Meta(ge=0.001, le=1e6, description="seconds of remaining time that one of waiting counts for")
        ] = 0.125
        stay: Annotated[
            Ratio, Meta(description="a shorter job preempts only when ahead by this many times the rescale cost")
        ] = 10.0
        size_weight: Annotated[
            float, Meta(ge=0, le=2, description="0: slots go where they are used best; 1: to the shortest jobs first")
        ] = 0.5
        theta: Annotated[
            Ratio, Meta(description="stop growing where a slot adds less than this share of one slot's speed")
        ] = 0.05

    def __init__(self, options: Options) -> None:
        self.options = options

    def plan(self, view: View) -> Plan:
        """Minimums, growth, then only the changes that pay."""
        draft = Draft(view)
        draft.pin()
        options = self.options
        self._grow(draft, seated(draft, shortest_first(draft, options.aging, options.stay)))
        settle(draft, Guard(options, view.now), lambda jobs: self._grow(draft, jobs))
        return draft.plan()

    def _grow(self, draft: Draft, jobs: Iterable[JobView]) -> None:
        climb(draft, jobs, self._worth)

    def _worth(self, job: JobView) -> Value:
        """Completions per second, weighed."""
        speed = rates(job)
        least = job.min_slots
        unit = max(speed(least), 1e-300)
        weight = (work_left(job) / least) ** -self.options.size_weight / unit
        return lambda workers: weight * speed(workers)
