"""The what-if for the picker: every named policy simulated forward from the pool's present state. Changes nothing.

Runs in a thread of the server, never in the daemon: the simulator is pure and the server may import it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from jupyter_elastic import wire
from jupyter_elastic.scheduler import plugins
from jupyter_elastic.scheduler.sim import whatif
from jupyter_elastic.server_ext.feed import Feed


class JobForecast(Struct, frozen=True, kw_only=True):
    """When a job would start and finish, seconds since the epoch; None: not within sight."""

    job: int
    start_at: float | None
    finish_at: float | None


class Forecast(Struct, frozen=True, kw_only=True):
    """The pool's future under one policy."""

    policy: str
    avg_jct_s: float | None
    makespan_s: float | None
    jobs: list[JobForecast]
    losers: list[int]
    """Who would finish later than under the first policy."""
    problem: str


async def forecast(feed: Feed, policies: list[str], options: dict[str, Any]) -> list[Forecast]:
    """A forecast for each policy; the first one is what the others are compared with, `options` are the last one's.

    NotFound or BadRequest for a policy or options that there aren't.
    """
    answer = await feed.ask(wire.ReadView())
    assert isinstance(answer, wire.PoolView)
    chosen = {name: answer.options if name == answer.policy else {} for name in policies}
    if options:
        chosen[policies[-1]] = options
    made = {name: plugins.make_policy(name, given) for name, given in chosen.items()}
    found = await asyncio.to_thread(whatif.compare, answer.view, made, first=policies[0])
    now = answer.view.now
    return [_in_clock_time(one, now) for one in found]


def _in_clock_time(found: whatif.Forecast, now: float) -> Forecast:
    return Forecast(
        policy=found.policy,
        avg_jct_s=found.avg_jct_s,
        makespan_s=found.makespan_s,
        jobs=[
            JobForecast(
                job=job.job,
                start_at=None if job.start_s is None else now + job.start_s,
                finish_at=None if job.finish_s is None else now + job.finish_s,
            )
            for job in found.jobs
        ],
        losers=list(found.losers),
        problem=found.note,
    )
