"""Forecasts other policies' effects and jobs' waits, and asks shadow policies, whose plans are not followed.

Requests the pool's view from the daemon, and runs the pure functions of `scheduler.forecast` in a thread. Runs in the
viewing process (Jupyter's server, a kernel with a cell's own policy, a terminal), never in the daemon. Changes nothing.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.forecast import outlook, shadow, whatif
from jupyter_elastic.scheduler.forecast.job_lengths import History
from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.scheduler.planning.policy_source import from_source
from jupyter_elastic.types import JobId, Policy, SlotId, SlotInfo, View
from jupyter_elastic.types.errors import BadRequest, ElasticError, NotFound
from jupyter_elastic.views.pool_screen import ShadowDifference, ShadowRow
from jupyter_elastic.views.timeline_bars import MAX_BARS, Rows, future_bars
from jupyter_elastic.views.timeline_screen import TimelinePicture

Ask: TypeAlias = Callable[[wire.AnyAsk], Awaitable[wire.AnyAnswer]]
Clock: TypeAlias = Callable[[], float]
"""A monotonic clock, in seconds."""
EVERY_S = 10.0
SOON_S = 1.0
"""Seconds until the next prediction after an event that changes it, while the future is viewed."""
MAX_JOBS = 300
"""Queue length beyond which no waits are shown: computing them would take seconds, and they would be wrong."""
PAST = 500
"""Number of the last ended jobs from which usual durations are learned."""
BUDGET_S = 20.0
"""Maximum seconds of one policy's forecast, or of the waits under it; usually one second for 200 jobs."""
LAZY = 30
"""Reciprocal of the maximum share of time that wait forecasts, or shadow policies, may take."""
ASKED_S, ASKED_IDLE_S = 2.0, 30.0
"""Seconds until shadows are asked again after an event, and without one: some policies depend on time."""
MAX_SHADOWS = 5
MAX_DIFFERENCES = 20


class PolicyForecast(whatif.Forecast, frozen=True, kw_only=True):
    """A policy's forecast with its picture."""

    picture: TimelinePicture | None = None
    """None for too many jobs to be legible."""


async def forecast(ask: Ask, policies: list[str], options: dict[str, Any]) -> list[PolicyForecast]:
    """Forecast each policy; the others are compared with the first, `options` belong to the last.

    NotFound or BadRequest for a policy or options that do not exist.
    """
    answer = expect(await ask(wire.ReadView()), wire.PoolView)
    slots = expect(await ask(wire.ListHosts()), wire.Hosts).slots
    chosen = {name: answer.options if name == answer.policy else {} for name in policies}
    if options:
        chosen[policies[-1]] = options
    made = {name: plugins.make_policy(name, given) for name, given in chosen.items()}
    usual = await _usual(ask, answer.view)
    found = await asyncio.to_thread(
        whatif.compare, answer.view, made, first=policies[0], usual=usual, timer=lambda: _over(BUDGET_S)
    )
    return await asyncio.to_thread(_pictured, answer.view, found, slots)


def _over(seconds: float) -> whatif.Over:
    """Return a function that is true once `seconds` from now are over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def _pictured(view: View, found: list[whatif.Forecast], slots: Sequence[SlotInfo]) -> list[PolicyForecast]:
    """Add a picture to each forecast, all of the same length."""
    rows = Rows({slot.slot: slot for slot in slots})
    held: dict[JobId, list[SlotId]] = {}
    for slot in slots:
        if slot.job is not None and slot.state == "leased":
            held.setdefault(slot.job, []).append(slot.slot)
    last = max((job.finish_s or 0.0 for one in found for job in one.jobs), default=0.0)
    end = view.now + max(1.02 * last, 1.0)
    pictured = []
    for one in found:
        picture = None
        if 0 < len(view.jobs) <= MAX_JOBS:
            bars = future_bars(rows, likely(one), held, view.now, end)
            picture = TimelinePicture(policy=one.policy, at=view.now, end=end, hosts=rows.hosts(), bars=bars[:MAX_BARS])
        fields = {name: getattr(one, name) for name in one.__struct_fields__}
        pictured.append(PolicyForecast(**fields, picture=picture))
    return pictured


def likely(found: whatif.Forecast) -> outlook.Outlook:
    """Return the most likely course alone, without ranges."""
    jobs = []
    for job in found.jobs:
        end = job.finish_s
        eta = None if end is None else outlook.Eta(job=job.job, guess_s=end, low_s=end, high_s=end, possible=(end, end))
        jobs.append(outlook.JobOutlook(job=job.job, end=eta, sizes=job.sizes))
    return outlook.Outlook(jobs=tuple(jobs))


async def _usual(ask: Ask, view: View) -> History:
    """Learn usual durations from the pool's past for jobs without an estimate; no request if all have one."""
    if all(job.profile.remaining is not None or job.estimate_s is not None for job in view.jobs):
        return History()
    return History.of(expect(await ask(wire.ListJobs(all=True, limit=PAST)), wire.Jobs).jobs)


class Waits:
    """A predictor of jobs' starts, on demand also of their ends and sizes; learns from its errors.

    Starts and ends are taken from the same simulated futures, so that no two screens contradict each other.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.ranges: dict[JobId, tuple[float, float]] = {}
        """Start range of queued jobs, in seconds since the epoch; to infinity if the range is too vague."""
        self.outlook = outlook.Outlook()
        """The whole future, if it was requested; its seconds count from `made_at`."""
        self.made_at: float | None = None
        """Seconds since the epoch; None before the first outlook."""
        self._clock = clock
        self._starts, self._ends = outlook.Calibration(), outlook.Calibration()
        self._predicted: dict[JobId, tuple[float, outlook.Eta]] = {}
        """The first prediction of each queued job's start, and its time."""
        self._predicted_ends: dict[JobId, tuple[float, outlook.Eta]] = {}
        """The first prediction of each job's end, and its time."""
        self._next = self._earliest = 0.0

    def hasten(self) -> None:
        """Make the next prediction soon, because the last one did not know a new event."""
        self._next = max(self._earliest, min(self._next, self._clock() + SOON_S))

    async def renew(self, ask: Ask, *, ends: bool = False) -> bool:
        """Make a new prediction if one is due; return whether it was. Without an answer there is no prediction."""
        began = self._clock()
        if began < self._next and not (ends and self.made_at is None):
            return False
        self._next = began + EVERY_S
        try:
            answer = expect(await ask(wire.ReadView()), wire.PoolView)
            view, policy = answer.view, plugins.make_policy(answer.policy, answer.options)
            usual = await _usual(ask, view)
        except ElasticError as problem:  # no daemon, or a policy from another notebook
            self.ranges = {}
            self.outlook = outlook.Outlook(note=f"no prediction: {problem}")
            return True
        self._learn(view)
        starts: list[outlook.Eta] = []
        found = outlook.Outlook(note=f"no prediction for more than {MAX_JOBS} jobs")
        if len(view.jobs) <= MAX_JOBS:
            simulated = self._clock()
            if ends:
                found = await asyncio.to_thread(
                    outlook.outlook,
                    view,
                    policy,
                    starts=self._starts,
                    ends=self._ends,
                    usual=usual,
                    over=_over(BUDGET_S),
                )
                starts = [job.start for job in found.jobs if job.start is not None]
            else:
                starts = await asyncio.to_thread(
                    outlook.waits, view, policy, past=self._starts, usual=usual, over=_over(BUDGET_S)
                )
            self._earliest = began + LAZY * (self._clock() - simulated)
            self._next = max(self._next, self._earliest)
        self.ranges = {
            eta.job: (view.now + eta.low_s, math.inf if eta.vague else view.now + eta.high_s) for eta in starts
        }
        for eta in starts:
            self._predicted.setdefault(eta.job, (view.now, eta))
        if ends:
            self.outlook, self.made_at = found, view.now
            for job in found.jobs:
                if job.end is not None:
                    self._predicted_ends.setdefault(job.job, (view.now, job.end))
        return True

    def ended(self, job: JobId, at: float, *, completed: bool) -> None:
        """Learn from a job's end; a cancelled or failed job teaches nothing."""
        predicted = self._predicted_ends.pop(job, None)
        if predicted is not None and completed:
            since, eta = predicted
            self._ends = self._ends.seen(eta, max(0.0, at - since))

    def _learn(self, view: View) -> None:
        jobs = {job.job: job for job in view.jobs}
        for number, (at, eta) in list(self._predicted.items()):
            job = jobs.get(number)
            if job is not None and job.phase == "queued":
                continue
            del self._predicted[number]
            if job is not None and job.changed_at is not None:
                self._starts = self._starts.seen(eta, max(0.0, job.changed_at - at))


def compare(
    ask: Callable[[wire.AnyAsk], wire.AnyAnswer], name: str, source: str, options: dict[str, Any] | None = None
) -> shadow.Comparison:
    """Compare the plans of the active policy and of a cell's text for the present pool; BadRequest if it is invalid."""
    policy = from_source(name, source, options)
    answer = expect(ask(wire.ReadView()), wire.PoolView)
    active = plugins.make_policy(answer.policy, answer.options)
    return shadow.compare(answer.view, (answer.policy, active), (name, policy))


class Shadows:
    """Policies that are asked repeatedly beside the active one, each with its own memo."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._asked: dict[str, _Asked] = {}
        self._seq = -1
        self._next = 0.0

    @property
    def rows(self) -> list[ShadowRow]:
        """The shadows' rows on the screen."""
        return [each.row for each in self._asked.values()]

    def begin(self, name: str, options: dict[str, Any] | None = None, source: str = "") -> Callable[[], None]:
        """Ask a policy from now on, `source` is a cell's text; BadRequest, or NotFound if it does not exist.

        Returns:
            A function that undoes this: the policy that was asked under that name before is asked again, or none.
        """
        if name not in self._asked and len(self._asked) >= MAX_SHADOWS:
            raise BadRequest(f"{MAX_SHADOWS} shadows are asked already: end one of {', '.join(self._asked)} first")
        options = options or {}
        policy = from_source(name, source, options) if source else plugins.make_policy(name, options)
        before = self._asked.get(name)
        made = self._asked[name] = _Asked(
            policy, ShadowRow(policy=name, options=options, cell=bool(source), since=time.time())
        )
        self._next = 0.0

        def undo() -> None:
            if self._asked.get(name) is made:
                if before is None:
                    del self._asked[name]
                else:
                    self._asked[name] = before

        return undo

    def end(self, name: str) -> None:
        """Stop asking the policy; NotFound when it is not asked."""
        if self._asked.pop(name, None) is None:
            raise NotFound(f"{name} is no shadow; those asked are {', '.join(self._asked) or 'none'}")

    def due(self, seq: int) -> bool:
        """Return whether to ask them again, given the newest event `seq`."""
        now = self._clock()
        return bool(self._asked) and now >= self._next and (seq != self._seq or now >= self._next + ASKED_IDLE_S)

    async def renew(self, ask: Ask, seq: int = 0) -> None:
        """Ask each policy about the present pool."""
        if not self._asked:
            return
        began, self._seq, self._next = self._clock(), seq, math.inf
        try:
            answer = expect(await ask(wire.ReadView()), wire.PoolView)
            await asyncio.to_thread(self._look, answer.view)
        finally:
            self._next = self._clock() + max(ASKED_S, LAZY * (self._clock() - began))

    def _look(self, view: View) -> None:
        for asked in list(self._asked.values()):
            asked.look(view)


class _Asked:
    """A policy that is asked."""

    def __init__(self, policy: Policy, row: ShadowRow) -> None:
        self.policy, self.row = policy, row
        self._memo: Any = None

    def look(self, view: View) -> None:
        """Ask the policy once more."""
        try:
            plan = shadow.checked_plan(self.policy, msgspec.structs.replace(view, memo=self._memo), self.row.policy)
        except BadRequest as problem:
            self.row = msgspec.structs.replace(self.row, problem=str(problem), differences=[], total_differences=0)
            return
        self._memo = plan.memo
        found = [
            ShadowDifference(job=job.job, name=job.name, owner=job.owner, holds=job.size.slots, shadow=slots)
            for job, slots in shadow.asked_sizes(plan, view)
            if job.phase != "stopping" and job.size.slots != slots
        ]
        since = self.row.differs_since
        self.row = msgspec.structs.replace(
            self.row,
            asked=self.row.asked + 1,
            differed=self.row.differed + bool(found),
            differs_since=(time.time() if since is None else since) if found else None,
            jobs=len(view.jobs),
            differences=found[:MAX_DIFFERENCES],
            total_differences=len(found),
            problem="",
        )
