"""When the lease of an attempt has run out: its agent has not renewed it for its term, and nothing of it lives now.

An attempt ends by itself when its lease runs out (`driver.lease`), by the clock of its own side, which begins to count
when the renewal was asked for. Here the term begins when it was accepted, which is later, and the slots stay leased for
`MARGIN_S` more. Only monotonic time counts. Knows the state and what was renewed when; must not know peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import TypeAlias

from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import ACTIVE, JobId

MARGIN_S = 10.0
"""From the end of a lease to the moment when its slots are free: more than an attempt may take to end."""

AttemptId: TypeAlias = tuple[JobId, int]


class Leases:
    """When each lease was last renewed. All begin anew with the daemon, which can't know how old they are."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._renewed: dict[AttemptId, float] = {}

    def renew(self, state: State, user: str, attempts: Iterable[AttemptId]) -> tuple[AttemptId, ...]:
        """Renew the leases of a user's attempts; those of them that still hold slots."""
        held = tuple(attempt for attempt in attempts if _holds(state, user, attempt))
        self._renewed.update(dict.fromkeys(held, self._monotonic()))
        return held

    def left_s(self, job: Job, heard_at: float | None = None) -> float:
        """Seconds until the slots of the job's attempt come back by themselves; endless without a lease.

        An attempt of which nothing is known has had no renewal from this daemon. As an agent renews before it starts
        anything, what runs of it has run since before the daemon began, or nothing does: its lease may begin when its
        agent was last heard.
        """
        if not job.lease_s:
            return inf
        now = self._monotonic()
        renewed = self._renewed.setdefault((job.job, job.attempt), now if heard_at is None else heard_at)
        return renewed + job.lease_s + MARGIN_S - now

    def run_out(self, state: State, heard: Mapping[str, float]) -> list[Job]:
        """The jobs whose present attempt has lost its lease; to be asked every second or so.

        `heard` says when each user's agent was last heard, or when this daemon began to wait for it.
        """
        active = state.active_jobs()
        present = {(job.job, job.attempt) for job in active}
        self._renewed = {attempt: at for attempt, at in self._renewed.items() if attempt in present}
        return [job for job in active if self.left_s(job, heard.get(job.owner)) < 0]


def _holds(state: State, user: str, attempt: AttemptId) -> bool:
    job = state.jobs.get(attempt[0])
    return job is not None and (job.owner, job.attempt) == (user, attempt[1]) and job.phase in ACTIVE
