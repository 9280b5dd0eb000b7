"""When the lease of an attempt has run out: its agent has not renewed it for its term, and nothing of it lives now.

What has been told to stop is renewed no longer than it may take to end, so that no agent keeps slots by renewing alone.

An attempt ends by itself when its lease runs out (`driver.lease`), by the clock of its own side, which begins to count
when the renewal was asked for. Here the term begins when it was accepted, which is later, and the slots stay leased for
`MARGIN_S` more. Only monotonic time counts. Knows the state and what was renewed when; must not know peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import TypeAlias

from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import ACTIVE, SAVE_GRACE_S, JobId

MARGIN_S = 10.0
"""From the end of a lease to the moment when its slots are free: more than an attempt may take to end."""

ORDER_S = 3.0
"""So long after the last renewal an agent that asks is told that the attempt holds its slots: it may not have read the
stop yet. What it then believes ends within `MARGIN_S`."""
SAVED_S = SAVE_GRACE_S + 20.0
"""From the stop of an attempt that is preempted to its end: its driver's grace, the way of the order and of the report,
and the ends of its processes."""

AttemptId: TypeAlias = tuple[JobId, int]


class Leases:
    """When each lease was last renewed. All begin anew with the daemon, which can't know how old they are."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._renewed: dict[AttemptId, float] = {}
        self._seen: dict[tuple[AttemptId, str], float] = {}
        """When it was first seen that an attempt was to stop, or that a session kept its slots, and how."""

    def renew(self, state: State, user: str, attempts: Iterable[AttemptId]) -> tuple[AttemptId, ...]:
        """Renew the leases of a user's attempts; those of them that still hold slots."""
        now = self._monotonic()
        held = []
        for attempt in attempts:
            if _holds(state, user, attempt) and now <= (last := self._last(state.jobs[attempt[0]])) + ORDER_S:
                self._renewed[attempt] = min(now, last)
                held.append(attempt)
        return tuple(held)

    def stopping_s(self, job: Job) -> float:
        """Seconds since it was first seen that the job's attempt, or its session, was to end."""
        how = job.stop or ("unpinned" if job.unpinning else "pinned")
        now = self._monotonic()
        return now - self._seen.setdefault(((job.job, job.attempt), how), now)

    def _last(self, job: Job) -> float:
        """Until when its attempt may be renewed: so that it ends a term after it was told to, or when it has saved."""
        if not (job.stop and job.lease_s):
            return inf
        saves_s = max(SAVED_S - job.lease_s, 0.0) if job.stop == "preempt" else 0.0
        return self._monotonic() - self.stopping_s(job) + saves_s

    def left_s(self, job: Job, heard_at: float | None = None) -> float:
        """Seconds until the slots of the job's attempt come back by themselves; endless without a lease.

        An attempt of which nothing is known has had no renewal from this daemon. As an agent renews before it starts
        anything, what runs of it has run since before the daemon began, or nothing does: its lease may begin when its
        agent was last heard.
        """
        if not job.lease_s:
            return inf
        if job.pinned:
            kept_s = 0.0 if job.unpinning else (job.pinned_until or 0.0) - (job.ended_at or 0.0)
            return kept_s + job.lease_s + MARGIN_S - self.stopping_s(job)
        now = self._monotonic()
        renewed = self._renewed.setdefault((job.job, job.attempt), now if heard_at is None else heard_at)
        return renewed + job.lease_s + MARGIN_S - now

    def run_out(self, state: State, heard: Mapping[str, float]) -> list[Job]:
        """The jobs whose present attempt has lost its lease, and those whose sessions keep slots for too long.

        To be asked every second or so.

        `heard` says when each user's agent was last heard, or when this daemon began to wait for it.
        """
        holding = [*state.active_jobs(), *(state.ended[job] for job in state.pinned)]
        present = {(job.job, job.attempt) for job in holding}
        self._renewed = {attempt: at for attempt, at in self._renewed.items() if attempt in present}
        self._seen = {key: at for key, at in self._seen.items() if key[0] in present}
        for job in holding:
            self._last(job)  # notes when it was told to stop
        return [job for job in holding if self.left_s(job, heard.get(job.owner)) < 0]


def _holds(state: State, user: str, attempt: AttemptId) -> bool:
    job = state.jobs.get(attempt[0])
    return job is not None and (job.owner, job.attempt) == (user, attempt[1]) and job.phase in ACTIVE
