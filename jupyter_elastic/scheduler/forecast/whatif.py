"""Simulate other policies from the pool's present state on, to see what a switch would change.

A fluid model: jobs train at constant speed between decisions, a change of size costs the job's own rescale pause, and
the policy is asked at finishes and at its interval, but no more often than a growing grain of time allows, so that 200
jobs under a dozen policies take a second or two. Hosts that end at a known time are there until they are drained for
it. Pure: knows views and policies; no clock, no chance, no disk.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.scheduler.core import turns
from jupyter_elastic.scheduler.core.plan import illegal
from jupyter_elastic.scheduler.core.rules.drains import LEAVE_S
from jupyter_elastic.scheduler.core.spare import spared
from jupyter_elastic.scheduler.forecast.job_lengths import Usual, expected
from jupyter_elastic.scheduler.policies.speed import rates
from jupyter_elastic.types import HostView, JobId, JobView, Policy, Size, Turn, View

GRAIN = 0.02
"""Minimum time between decisions, as a share of the time already simulated: later times are less exact."""
LEAST_GRAIN_S = 1.0
HORIZON_S = 60 * 86_400.0
IDLE_TRIES = 40
"""Decisions in a row without any running job after which the waiting ones count as never starting."""
LOSS, LOSS_S = 0.05, 10.0
"""Share of its time, and seconds, by which a job must finish later to lose by a switch."""

Stretch: TypeAlias = Callable[[JobView], float]
"""Factor of a job's expected length in this future."""
Over: TypeAlias = Callable[[], bool]
"""True when the time that a forecast may take is up. Called between decisions: a decision is not interrupted."""
TOO_SLOW = "no forecast: this policy takes too long to decide"


def never() -> bool:
    """Return False: a forecast may take any time."""
    return False


class JobForecast(Struct, frozen=True, kw_only=True):
    """Future of a job under a policy, in seconds from now; None: not within sight."""

    job: JobId
    start_s: float | None = None
    """First time with slots from now on; 0 for a job that has them."""
    finish_s: float | None = None
    guessed: bool = False
    """True if the job's length is unknown, so that the finish is a guess."""
    sizes: tuple[tuple[float, int], ...] = ()
    """Slots from each time on until the next one, the last until the finish."""


class Forecast(Struct, frozen=True, kw_only=True):
    """Future of the pool under one policy."""

    policy: str
    jobs: tuple[JobForecast, ...] = ()
    avg_jct_s: float | None = None
    """Mean turnaround in seconds of the jobs in sight, from their first submission."""
    makespan_s: float | None = None
    """Seconds from now to the last finish."""
    losers: tuple[JobId, ...] = ()
    """Jobs that would finish later than under the first policy of the comparison."""
    winners: tuple[JobId, ...] = ()
    avg_jct_trend: int = 0
    """Result of `trend` against the first policy of the comparison; the next one likewise."""
    makespan_trend: int = 0
    note: str = ""
    """Reason why the forecast is incomplete."""


def compare(
    view: View,
    policies: Mapping[str, Policy],
    *,
    first: str,
    usual: Usual | None = None,
    timer: Callable[[], Over] = lambda: never,
) -> list[Forecast]:
    """Forecast each policy; losers and winners are against `first`, the one of them that is active.

    `timer` is called at the start of each policy's forecast, and returns a function that is True when its time is up.
    """
    forecasts = {
        name: forecast(view, policy, name=name, usual=usual, over=timer()) for name, policy in policies.items()
    }
    return [_against(forecasts[first], other) for other in forecasts.values()]


def forecast(
    view: View,
    policy: Policy,
    *,
    name: str = "",
    stretch: Stretch = lambda _: 1.0,
    usual: Usual | None = None,
    only_starts: bool = False,
    over: Over = never,
) -> Forecast:
    """Simulate one policy. `stretch` scales a job's remaining work; `only_starts` ends once no job waits."""
    run = _Run(view, policy, stretch, usual)
    note = run.run(only_starts, over)
    jobs = tuple(
        JobForecast(
            job=fluid.view.job,
            start_s=fluid.start,
            finish_s=fluid.finish,
            guessed=fluid.guessed,
            sizes=tuple(fluid.sizes),
        )
        for fluid in run.fluids
    )
    jcts = [fluid.finish + view.now - fluid.view.submitted_at for fluid in run.fluids if fluid.finish is not None]
    complete = len(jcts) == len(jobs)
    return Forecast(
        policy=name or policy.name,
        jobs=jobs,
        avg_jct_s=sum(jcts) / len(jcts) if jcts and complete else None,
        makespan_s=max((fluid.finish or 0.0 for fluid in run.fluids), default=0.0) if complete else None,
        note=note,
    )


def trend(old: float | None, new: float | None) -> int:
    """Return 1 if `new` is later than `old`, -1 if it is earlier, 0 if they are about the same; None means never."""
    early, late = (math.inf if value is None else value for value in (old, new))
    if early == late:
        return 0
    margin = max(LOSS_S, LOSS * min(early, late))
    return (late > early + margin) - (early > late + margin)


def _against(base: Forecast, other: Forecast) -> Forecast:
    before = {job.job: job.finish_s for job in base.jobs}
    trends = {job.job: trend(before.get(job.job), job.finish_s) for job in other.jobs}
    return replace(
        other,
        losers=tuple(job for job, change in trends.items() if change > 0),
        winners=tuple(job for job, change in trends.items() if change < 0),
        avg_jct_trend=trend(base.avg_jct_s, other.avg_jct_s),
        makespan_trend=trend(base.makespan_s, other.makespan_s),
    )


class _Fluid:
    """A job as a quantity that flows."""

    def __init__(self, view: JobView, now: float, stretch: float, usual: Usual | None) -> None:
        self.view = view
        self.rate: Callable[[int], float] = rates(view)
        known = view.profile.remaining is not None or view.estimate_s is not None
        self.guessed = not known and view.max_time_s is None
        self.size = view.size
        self.speed = self.rate(view.size.workers)
        self.left = max(0.0, expected(view, self.rate, usual) - self._unreported(now)) * stretch
        self.work = self.left
        self.pause = 0.0
        self.attained, self.run = 0.0, 0.0
        self.start: float | None = 0.0 if view.size.workers else None
        self.finish: float | None = None
        self.changed: float | None = view.changed_at
        self.pauses = 0
        self.sizes = [(0.0, view.size.slots)] if view.size.workers else []
        self.places = turns.places(view.group, view.owner)

    def _unreported(self, now: float) -> float:
        """Return the work probably done since the last report, which the reported remaining work still contains."""
        profile = self.view.profile
        if profile.remaining is None or profile.reported_at is None or profile.report_period_s is None:
            return 0.0
        return self.speed * min(max(0.0, now - profile.reported_at), profile.report_period_s)

    def ends_in(self) -> float:
        """Return the seconds to the job's end at the present size."""
        if self.speed <= 0:
            return math.inf
        limit = math.inf
        if self.view.max_time_s is not None:
            limit = max(0.0, self.view.max_time_s - self.view.run_s - self.run)
        return min(self.pause + self.left / self.speed, limit)

    def flow(self, seconds: float) -> None:
        """Train for `seconds`."""
        slots = self.view.cost(self.size)
        self.attained += seconds * slots
        self.run += seconds
        paused = min(self.pause, seconds)
        self.pause -= paused
        self.left = max(0.0, self.left - (seconds - paused) * self.speed)

    def seen(self) -> JobView:
        """Return the job as a policy would see it now."""
        view, size = self.view, self.size
        if not self.run and size == view.size and self.changed == view.changed_at:
            return view
        profile = view.profile
        if profile.remaining is not None:
            done = None if profile.done is None else profile.done + (self.work - self.left)
            profile = replace(profile, remaining=self.left, done=done)
        return replace(
            view,
            phase="running" if size.workers else "queued",
            size=size,
            changed_at=self.changed,
            started_at=view.started_at if view.started_at is not None else self.changed,
            queued_at=view.queued_at if size.workers or self.changed is None else self.changed,
            attained_s=view.attained_s + self.attained,
            run_s=view.run_s + self.run,
            preemptions=view.preemptions + self.pauses,
            profile=profile,
        )


class _Run:
    """Simulation of one policy."""

    def __init__(self, view: View, policy: Policy, stretch: Stretch, usual: Usual | None) -> None:
        self.view, self.policy = view, policy
        self.fluids = [_Fluid(job, view.now, stretch(job), usual) for job in view.jobs if job.phase != "stopping"]
        self.active = list(self.fluids)
        self.ahead = 0.0
        self.memo: Any = view.memo
        self.turns = {row: dict(known) for row, known in view.turns.items()}

    def run(self, only_starts: bool, over: Over) -> str:
        """Simulate until all jobs have finished (or started); return the reason if that failed, else an empty text."""
        idle = 0
        while self.active:
            if only_starts and all(fluid.start is not None for fluid in self.active):
                return ""
            if over():
                return TOO_SLOW
            problem = self._decide()
            if problem:
                return problem
            moving = any(fluid.speed > 0 for fluid in self.active)
            idle = 0 if moving else idle + 1
            if idle > IDLE_TRIES or self.ahead > HORIZON_S:
                never = "1 job doesn't" if len(self.active) == 1 else f"{len(self.active)} jobs don't"
                return f"{never} end within sight under this policy"
            self._advance()
        return ""

    def _decide(self) -> str:
        now = self.view.now + self.ahead
        jobs = tuple(spared([fluid.seen() for fluid in self.active], now))
        view = replace(self.view, now=now, jobs=jobs, memo=self.memo, hosts=self._hosts(), turns=self.turns)
        try:
            plan = self.policy.plan(view)
        except Exception as problem:  # a policy may be anybody's
            return f"the policy failed: {type(problem).__name__}: {problem}"
        reason = illegal(plan, view)
        if reason:
            return f"the policy proposed an illegal plan: {reason}"
        self.memo = plan.memo
        for fluid in self.active:
            size = plan.sizes.get(fluid.view.job, Size(0))
            if size != fluid.size:
                self._resize(fluid, size, now)
        return ""

    def _resize(self, fluid: _Fluid, size: Size, now: float) -> None:
        if size.workers:
            fluid.pause = fluid.view.profile.rescale_cost_s
            if fluid.start is None:
                fluid.start = self.ahead
        else:
            fluid.pauses += 1
            if fluid.view.loses_all and fluid.changed is not None:
                fluid.left += fluid.speed * max(0.0, now - fluid.changed)
        if not fluid.size.workers and self.turns:
            for row, name in fluid.places:
                turn = self.turns[row].get(name, Turn())
                self.turns[row][name] = replace(turn, begun=(*turn.begun[1 - turns.KEPT :], now))
        fluid.size, fluid.changed = size, now
        if fluid.sizes and fluid.sizes[-1][0] == self.ahead:
            fluid.sizes.pop()
        fluid.sizes.append((self.ahead, size.slots))
        fluid.speed = fluid.rate(size.workers)

    def _advance(self) -> None:
        """Advance to the next finish, or to the last one within the grain behind it: close ones are one event.

        Not to the end of the grain: in a busy pool waiting jobs would start later and later.
        """
        grain = max(LEAST_GRAIN_S, GRAIN * self.ahead)
        ends = [fluid.ends_in() for fluid in self.active]
        soonest = min(ends)
        last = max(end for end in ends if end <= soonest + grain)
        timer = max(self.policy.interval_s, 8 * grain) if self.policy.interval_s else math.inf
        if math.isinf(soonest) and math.isinf(timer):
            timer = 60.0 + 8 * grain
        step = min(max(last, 0.0), max(timer, grain))
        if self.turns:
            self._owe(step)
        still = []
        for fluid in self.active:
            end = fluid.ends_in()
            if end <= step:
                fluid.finish = self.ahead + end
            else:
                if fluid.size.workers:
                    fluid.flow(step)
                still.append(fluid)
        self.active = still
        self.ahead += step

    def _owe(self, seconds: float) -> None:
        """Count the slots that users and groups hold while another one waits, as `core/turns.py` does."""
        held: defaultdict[tuple[str, str], int] = defaultdict(int)
        waiting: defaultdict[str, set[str]] = defaultdict(set)
        for fluid in self.active:
            for row, name in fluid.places:
                held[row, name] += fluid.view.cost(fluid.size)
                if not fluid.size.workers:
                    waiting[row].add(name)
        for (row, name), slots in held.items():
            if slots and waiting[row] - {name}:
                turn = self.turns[row].get(name, Turn())
                self.turns[row][name] = replace(turn, owed_s=turn.owed_s + slots * seconds)

    def _hosts(self) -> tuple[HostView, ...]:
        """Return the hosts with the present free slots, filled from the last: placement is beyond a forecast.

        Hosts that are drained for their end have only the slots of jobs that can't be taken from them.
        """
        now = self.view.now + self.ahead
        gone = {host.name for host in self.view.hosts if host.until is not None and host.until - LEAVE_S <= now}
        capacity = sum(host.capacity for host in self.view.hosts if host.name not in gone)
        kept = sum(fluid.view.cost(fluid.size) for fluid in self.active if not fluid.view.preemptible)
        stay = max(0, kept - capacity)
        free = capacity + stay - sum(fluid.view.cost(fluid.size) for fluid in self.active)
        hosts = []
        for host in self.view.hosts:
            there = host.capacity
            if host.name in gone:
                there = min(there, stay)
                stay -= there
            mine = max(0, min(there, free))
            free -= mine
            hosts.append(HostView(name=host.name, capacity=there, free=mine, until=host.until))
        return tuple(hosts)
