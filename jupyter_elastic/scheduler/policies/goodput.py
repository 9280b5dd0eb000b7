"""Goodput: throughput times statistical efficiency, divided so that all jobs' speed-ups count.

Source: Qiao et al., "Pollux" (OSDI 2021): a batch `scale` times as large makes (noise + 1) / (noise + scale) of the
progress per sample, noise being the gradient noise scale in units of the job's own batch (McCandlish et al., 2018).
Pollux searches the allocation with the best power mean of speed-ups by a genetic algorithm every minute; the mean with
p = -1 is a sum of 1 / speed-up over jobs, concave in each, and the greedy climb finds its best in milliseconds. Sizes
only: a job that adapts its batch reports useful samples, and its profile holds what that gives at each size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from jupyter_elastic.scheduler.policies.common import Draft
from jupyter_elastic.scheduler.policies.elastic import Elastic, ElasticOptions, Value, climb, seated
from jupyter_elastic.scheduler.policies.order import shortest_first
from jupyter_elastic.scheduler.policies.speed import rates, work_left
from jupyter_elastic.types import JobView


class Goodput(Elastic):
    """Best power mean of goodput speed-ups."""

    name = "goodput"
    summary = "Slots where they give the most progress: throughput times statistical efficiency (Pollux)."

    class Options(ElasticOptions, frozen=True):
        batch: Annotated[
            float,
            Meta(ge=0, le=1e9, description="samples a worker adds to the global batch; 0: the global batch is fixed"),
        ] = 0.0
        power: Annotated[
            float,
            Meta(ge=0.1, le=4, description="p of the power mean of speed-ups; larger is fairer, smaller is faster"),
        ] = 1.0
        size_weight: Annotated[
            float, Meta(ge=0, le=2, description="0: all jobs count alike; 1: by the inverse of their remaining time")
        ] = 0.25

    options: Options

    def _seat(self, draft: Draft) -> Sequence[JobView]:
        return seated(draft, shortest_first(draft, 0.125, 10.0))

    def _grow(self, draft: Draft, jobs: Sequence[JobView]) -> None:
        climb(draft, jobs, self._worth)

    def _worth(self, job: JobView) -> Value:
        """Return minus the weighed inverse of the goodput's speed-up."""
        speed, least = rates(job), job.min_slots
        noise, batch, power = job.profile.noise_scale, self.options.batch, self.options.power

        def goodput(workers: int) -> float:
            if noise is None or not batch:
                return speed(workers)
            return speed(workers) * (noise + batch * least) / (noise + batch * workers)

        unit = max(goodput(least), 1e-300)
        weight = (work_left(job, speed) / least) ** -self.options.size_weight
        return lambda workers: -weight * (unit / max(goodput(workers), 1e-300)) ** power
