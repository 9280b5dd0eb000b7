"""What would happen: every named policy simulated forward from the pool's present state, and how long who waits.

Runs beside whoever looks (Jupyter's server, a kernel, a terminal), in a thread, never in the daemon: the simulator is
pure. Changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from msgspec import Struct

from jupyter_elastic.errors import ElasticError
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler import plugins
from jupyter_elastic.scheduler.forecast import whatif
from jupyter_elastic.scheduler.forecast.lengths import History
from jupyter_elastic.types import JobId, View

Ask: TypeAlias = Callable[[wire.AnyAsk], Awaitable[wire.AnyAnswer]]
"""Asks the daemon."""
EVERY_S = 10.0
MAX_JOBS = 300
"""Of a longer queue nobody is told a wait: it would take seconds to find out and be wrong."""
PAST = 500
"""Jobs that ended last, whose lengths say what is usual."""
LAZY = 30
"""The waits are found anew at most so often that this takes one part in so many of the time."""


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
    winners: list[int]
    avg_jct_trend: int
    """1: later than under the first policy, -1: earlier, 0: about the same, by the measure of losers and winners."""
    makespan_trend: int
    problem: str


async def forecast(ask: Ask, policies: list[str], options: dict[str, Any]) -> list[Forecast]:
    """A forecast for each policy; the first one is what the others are compared with, `options` are the last one's.

    NotFound or BadRequest for a policy or options that there aren't.
    """
    answer = await ask(wire.ReadView())
    assert isinstance(answer, wire.PoolView)
    chosen = {name: answer.options if name == answer.policy else {} for name in policies}
    if options:
        chosen[policies[-1]] = options
    made = {name: plugins.make_policy(name, given) for name, given in chosen.items()}
    usual = await _usual(ask, answer.view)
    found = await asyncio.to_thread(whatif.compare, answer.view, made, first=policies[0], usual=usual)
    now = answer.view.now
    return [_in_clock_time(one, now) for one in found]


async def _usual(ask: Ask, view: View) -> History:
    """What the pool's past says about the length of jobs that don't; not asked for where all do."""
    if all(job.profile.remaining is not None or job.estimate_s is not None for job in view.jobs):
        return History()
    past = await ask(wire.ListJobs(all=True, limit=PAST))
    assert isinstance(past, wire.Jobs)
    return History.of(past.jobs)


class Waits:
    """When the queued jobs will start, as ranges of seconds since the epoch; learns from how wrong it was."""

    def __init__(self) -> None:
        self.ranges: dict[JobId, tuple[float, float]] = {}
        self._past = whatif.Calibration()
        self._said: dict[JobId, tuple[float, whatif.Eta]] = {}
        self._next = 0.0

    async def renew(self, ask: Ask) -> bool:
        """Find the ranges anew when it is time to; whether they were. A pool that does not answer has none."""
        began = time.monotonic()
        if began < self._next:
            return False
        self._next = began + EVERY_S
        try:
            answer = await ask(wire.ReadView())
            assert isinstance(answer, wire.PoolView)
            view, policy = answer.view, plugins.make_policy(answer.policy, answer.options)
            usual = await _usual(ask, view)
        except ElasticError:  # gone, or a policy from somebody's notebook
            self.ranges = {}
            return True
        self._learn(view)
        found: list[whatif.Eta] = []
        if len(view.jobs) <= MAX_JOBS:
            simulated = time.monotonic()
            found = await asyncio.to_thread(whatif.waits, view, policy, past=self._past, usual=usual)
            self._next = max(self._next, began + LAZY * (time.monotonic() - simulated))
        self.ranges = {eta.job: (view.now + eta.low_s, view.now + eta.high_s) for eta in found}
        for eta in found:
            self._said.setdefault(eta.job, (view.now, eta))
        return True

    def _learn(self, view: View) -> None:
        jobs = {job.job: job for job in view.jobs}
        for number, (said_at, eta) in list(self._said.items()):
            job = jobs.get(number)
            if job is not None and job.phase == "queued":
                continue
            del self._said[number]
            if job is not None and job.changed_at is not None:
                self._past = self._past.seen(eta, max(0.0, job.changed_at - said_at))


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
        winners=list(found.winners),
        avg_jct_trend=found.avg_jct_trend,
        makespan_trend=found.makespan_trend,
        problem=found.note,
    )
