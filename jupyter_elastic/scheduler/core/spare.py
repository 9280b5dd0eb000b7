"""Find running jobs that policies must leave their slots because all their work would be lost (pure).

A policy may take such a job's slots for a job that has waited no longer than this one has run, and only once. After
that only when a user without a slot has waited for `BOUND_S` and the job has run as long, the next time twice as long,
and so on: so each job ends after all, and nobody waits for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from msgspec.structs import replace

from jupyter_elastic.types import JobView

BOUND_S = 3600.0
"""Maximum seconds that a user waits for a first slot before a job that would lose all may be stopped again."""


def spared(jobs: Sequence[JobView], now: float) -> Sequence[JobView]:
    """Return the jobs with those that are to keep their slots marked as not preemptible."""
    plain = [job for job in jobs if job.loses_all and job.preemptible and job.size.workers]
    if not plain:
        return jobs
    waits: dict[str, float] = {}
    for job in jobs:
        if job.phase == "queued" and job.queued_at < waits.get(job.owner, inf):
            waits[job.owner] = job.queued_at
    holding = {job.owner for job in jobs if job.size.workers}
    desperate = any(since <= now - BOUND_S for owner, since in waits.items() if owner not in holding)
    first = sorted((since, owner) for owner, since in waits.items())[:2]
    kept = set()
    for job in plain:
        since = now if job.changed_at is None else job.changed_at
        oldest = next((came for came, owner in first if owner != job.owner), waits.get(job.owner, inf))
        once = not job.preemptions and since <= oldest < inf
        if not once and not (desperate and now - since >= BOUND_S * 2.0 ** min(job.preemptions, 32)):
            kept.add(job.job)
    return [replace(job, preemptible=False, spared=True) if job.job in kept else job for job in jobs] if kept else jobs
