"""Finds earlier runs of a job, of the same owner and name, and their metrics, for the comparison in its plots."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from jupyter_elastic.client.job_screen import Series
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobId, Phase
from jupyter_elastic.types.errors import NotFound
from jupyter_elastic.views.follower import PoolFollower

MAX_RUNS = 12
"""Maximum number of runs that are offered."""
LOOKED_THROUGH = 1000
"""Number of the owner's newest jobs that are searched."""
PATIENCE_S = 20.0
"""Seconds to wait for a job's events: those of a long run take a moment."""


class EarlierRun(Struct, frozen=True, kw_only=True):
    """An earlier run. Times are seconds since the epoch."""

    job: JobId
    phase: Phase
    submitted_at: float


async def runs(follower: PoolFollower, number: JobId) -> list[EarlierRun]:
    """Return the runs before this job, newest first; NotFound when there is no such job."""
    (this,) = expect(await follower.ask(wire.ListJobs(all=True, job=number)), wire.Jobs).jobs
    ask = wire.ListJobs(all=True, owner=this.owner, limit=LOOKED_THROUGH)
    jobs = expect(await follower.ask(ask), wire.Jobs).jobs
    same = [job for job in jobs if job.spec.name == this.spec.name and job.job < number and job.started_at is not None]
    found = [EarlierRun(job=job.job, phase=job.phase, submitted_at=job.submitted_at) for job in same]
    return found[::-1][:MAX_RUNS]


async def metrics(follower: PoolFollower, number: JobId) -> list[Series]:
    """Return the metrics of a job so far; NotFound when there is no such job, or its events can't be read now."""
    job = await follower.job(number)
    until = asyncio.get_running_loop().time() + PATIENCE_S
    while not job.up_to_date:
        if asyncio.get_running_loop().time() > until:
            raise NotFound(f"the events of job {number} can't be read now: {job.problem or 'the pool is busy'}")
        await job.wait_for_news(1.0)
    return (await asyncio.to_thread(job.screen)).metrics  # `screen` reads files
