"""Detect attempts whose lease has run out: the agent has not renewed it for its term, so nothing of it lives now.

An attempt that was ordered to stop is renewed only as long as its end may take, so that no agent keeps slots by
renewing alone. An attempt ends by itself when its lease runs out (`driver.lease`), by its own side's clock, which
counts from the request of the renewal. Here the term begins when the renewal was accepted, which is later, and the
slots stay leased for `MARGIN_S` more. Only monotonic time counts. Knows the state and the times of renewals; must not
know peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import TypeAlias

from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import ACTIVE, SAVE_GRACE_S, JobId

MARGIN_S = 10.0
"""Seconds from the end of a lease until its slots are free: more than an attempt may take to end."""

ORDER_S = 3.0
"""Seconds after the last renewal during which the agent still gets the answer that the attempt holds its slots, as it
may not have read the stop yet. What the agent then believes ends within `MARGIN_S`."""
SAVED_S = SAVE_GRACE_S + 20.0
"""Seconds from the stop of a preempted attempt to its end: its driver's grace, the transfer of the order and of the
report, and the ends of its processes."""

AttemptId: TypeAlias = tuple[JobId, int]


class Leases:
    """Times at which leases were last renewed; all begin anew with the daemon, which can't know how old they are."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._renewed: dict[AttemptId, float] = {}
        self._seen: dict[tuple[AttemptId, str], float] = {}
        """Time at which a stop of an attempt, or retention by its session, was first seen, by kind."""

    def renew(self, state: State, user: str, attempts: Iterable[AttemptId]) -> tuple[AttemptId, ...]:
        """Renew the leases of a user's attempts, and return those that still hold slots."""
        now = self._monotonic()
        held = []
        for attempt in attempts:
            if _holds(state, user, attempt) and now <= (last := self._last(state.jobs[attempt[0]])) + ORDER_S:
                self._renewed[attempt] = min(now, last)
                held.append(attempt)
        return tuple(held)

    def stopping_s(self, job: Job) -> float:
        """Return the seconds since a stop of the job's attempt, or of its session, was first seen."""
        how = job.stop or ("withdrawn" if job.withdrawn else "retained")
        now = self._monotonic()
        return now - self._seen.setdefault(((job.job, job.attempt), how), now)

    def _last(self, job: Job) -> float:
        """Return until when the attempt may be renewed, so that it ends a term after its stop, or when it has saved."""
        if not (job.stop and job.lease_s):
            return inf
        saves_s = max(SAVED_S - job.lease_s, 0.0) if job.stop == "preempt" else 0.0
        return self._monotonic() - self.stopping_s(job) + saves_s

    def left_s(self, job: Job, received_at: float | None = None) -> float:
        """Return the seconds until the slots of the job's attempt come back by themselves; infinity without a lease.

        An attempt not known here has had no renewal from this daemon. As an agent renews before it starts anything, the
        attempt's processes run since before the daemon began, or there are none: the lease may begin when the agent's
        last message came.
        """
        if not job.lease_s:
            return inf
        if job.retention is not None:
            kept_s = 0.0 if job.withdrawn else job.retention.until - (job.ended_at or 0.0)
            return kept_s + job.lease_s + MARGIN_S - self.stopping_s(job)
        now = self._monotonic()
        renewed = self._renewed.setdefault((job.job, job.attempt), now if received_at is None else received_at)
        return renewed + job.lease_s + MARGIN_S - now

    def run_out(self, state: State, heard: Mapping[str, float]) -> list[Job]:
        """Return the jobs whose attempt has lost its lease, and those whose sessions retain slots for too long.

        To be called every second or so. `heard`: the time of each user's agent's last message, or the
        time since which this daemon waits for the agent.
        """
        holding = [*state.active_jobs(), *state.retained(exclusive=True)]
        present = {(job.job, job.attempt) for job in holding}
        self._renewed = {attempt: at for attempt, at in self._renewed.items() if attempt in present}
        self._seen = {key: at for key, at in self._seen.items() if key[0] in present}
        for job in holding:
            self._last(job)  # notes when it was told to stop
        return [job for job in holding if self.left_s(job, heard.get(job.owner)) < 0]


def _holds(state: State, user: str, attempt: AttemptId) -> bool:
    job = state.jobs.get(attempt[0])
    return job is not None and (job.owner, job.attempt) == (user, attempt[1]) and job.phase in ACTIVE
