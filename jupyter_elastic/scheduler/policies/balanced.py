"""Balanced: minimums to the shortest, slots where they bring completions soonest, changes only if they pay.

Sources: the order is SRPT if the remaining work is known, else Tiresias' least attained service (NSDI 2019). Growth is
the greedy marginal gain of Optimus (EuroSys 2018) on the speed-up instead of the seconds saved, weighed by 1 /
remaining time to the power `size_weight` (the direction of heSRPT, Berg et al. 2020): a slot goes where it brings
completions soonest, not where the most seconds are left. In a first round a job stops growing if a slot adds less than
`efficiency` of what its first ones give, since waste now prolongs the makespan; slots that no job would use well are
then given where they help at all. A running job keeps slots that no other job wants, and grows only if that saves more
than `payback` times its own measured rescale cost. The figures are in docs/policies-evidence.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from jupyter_elastic.scheduler.policies.common import Aging, Draft, Stay
from jupyter_elastic.scheduler.policies.elastic import Cooldown, Elastic, ElasticOptions, Payback, Value, climb, seated
from jupyter_elastic.scheduler.policies.order import shortest_first
from jupyter_elastic.scheduler.policies.speed import rates, work_left
from jupyter_elastic.types import JobView


class Balanced(Elastic):
    """Short average turnaround and a full pool."""

    name = "balanced"
    summary = "Short jobs soon, slots where they speed up most, changes only where they pay (default)."
    interval_s = 10.0

    class Options(ElasticOptions, frozen=True):
        cooldown: Cooldown = 2.0
        payback: Payback = 1.0
        aging: Aging = 0.125
        stay: Stay = 10.0
        size_weight: Annotated[
            float, Meta(ge=0, le=2, description="0: slots go where they are used best; 1: to the shortest jobs first")
        ] = 0.5
        efficiency: Annotated[
            float,
            Meta(
                ge=0,
                le=1,
                description="first, a job grows only while a slot adds this share of what its first ones give",
            ),
        ] = 0.35

    options: Options

    def _seat(self, draft: Draft) -> Sequence[JobView]:
        return seated(draft, shortest_first(draft, self.options.aging, self.options.stay))

    def _grow(self, draft: Draft, jobs: Sequence[JobView]) -> None:
        """Give slots that are used well first, then the others where they help at all."""
        climb(draft, jobs, lambda job: self._worth(job, self.options.efficiency))
        climb(draft, jobs, lambda job: self._worth(job, 0.0))

    def _worth(self, job: JobView, floor: float) -> Value:
        """Return the speed-up over the job's minimum, weighed by its shortness, minus the slots' value elsewhere."""
        speed, least = rates(job), job.min_slots
        weight = (work_left(job, speed) / least) ** -self.options.size_weight
        unit, cost = weight / max(speed(least), 1e-300), weight * floor / least
        return lambda workers: unit * speed(workers) - cost * workers
