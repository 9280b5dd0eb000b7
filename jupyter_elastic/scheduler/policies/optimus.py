"""Optimus: all minimums, then each slot where it shortens a job's remaining time most.

Source: Peng et al., "Optimus" (EuroSys 2018), with speeds from the job's profile. The gain of a step is the seconds of
remaining time that it saves per slot; growth stops when no job gains.
"""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_elastic.scheduler.policies.common import Draft, seat
from jupyter_elastic.scheduler.policies.elastic import Elastic, ElasticOptions, Value, climb
from jupyter_elastic.scheduler.policies.speed import measured, rates, work_left
from jupyter_elastic.types import JobView


class Optimus(Elastic):
    """Greedy by reduction of remaining time."""

    name = "optimus"
    summary = "Everyone a minimum, then each slot where it saves the most remaining time (Optimus)."

    class Options(ElasticOptions, frozen=True):
        pass

    options: Options

    def _seat(self, draft: Draft) -> Sequence[JobView]:
        seat(draft, draft.by_priority([*draft.running, *draft.waiting]), strict=True)
        return list(draft.jobs.values())

    def _grow(self, draft: Draft, jobs: Sequence[JobView]) -> None:
        climb(draft, jobs, seconds_saved)


def seconds_saved(job: JobView) -> Value:
    """Return minus the remaining seconds, by number of workers."""
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
