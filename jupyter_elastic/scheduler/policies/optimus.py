"""Optimus: everyone's minimum, then each slot where it shortens somebody's remaining time most.

Source: Peng et al., "Optimus" (EuroSys 2018), with speeds from the job's profile. The gain of a step is the seconds of
remaining time that it saves per slot; it stops when nobody gains.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from jupyter_elastic.scheduler.policies.common import Configured, Draft, seat
from jupyter_elastic.scheduler.policies.elastic import Guard, Guarded, Value, climb, settle
from jupyter_elastic.scheduler.policies.speed import measured, rates, work_left
from jupyter_elastic.types import JobView, Plan, View


class Optimus(Configured):
    """Greedy by reduction of remaining time."""

    name: ClassVar[str] = "optimus"
    summary: ClassVar[str] = "Everyone a minimum, then each slot where it saves the most remaining time (Optimus)."
    work_conserving: ClassVar[bool] = True
    interval_s: ClassVar[float | None] = 30.0

    class Options(Guarded, frozen=True):
        pass

    options: Options

    def plan(self, view: View) -> Plan:
        """Minimums in order of arrival, then the greedy climb."""
        draft = Draft(view)
        draft.pin()
        order = draft.by_priority([*draft.running, *draft.waiting])
        seat(draft, order, strict=True)
        self._grow(draft, list(draft.jobs.values()))
        settle(draft, Guard(self.options, view.now), lambda jobs: self._grow(draft, jobs))
        return draft.plan()

    @staticmethod
    def _grow(draft: Draft, jobs: Iterable[JobView]) -> None:
        climb(draft, jobs, seconds_saved)


def seconds_saved(job: JobView) -> Value:
    """Minus the remaining seconds, by number of workers."""
    speed = rates(job)
    least, remaining = job.min_slots, job.profile.remaining
    unit = speed(least)
    if remaining is not None and measured(job) and unit > 0:
        work = max(remaining, unit / least)
    else:
        work = work_left(job, speed) / least * unit

    def value(workers: int) -> float:
        fast = speed(workers)
        return -work / fast if fast > 0 else -1e300

    return value
