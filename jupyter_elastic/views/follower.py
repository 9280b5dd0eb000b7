"""Follows the pool and the jobs that are viewed, for kernel, terminal and Jupyter server.

One connection, one model of the pool and one of each job, in one event loop: the server's own, or that of a thread
(`updater`). After an outage of the daemon it connects again and goes on from the daemon's answers. Knows the client,
the models and a job's files; must not know how anything is drawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from jupyter_elastic.client import AsyncClient, services
from jupyter_elastic.client.job_model import JobModel
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobId, JobInfo, SlotInfo
from jupyter_elastic.types.errors import ElasticError
from jupyter_elastic.views import forecasts
from jupyter_elastic.views.followed_job import FollowedJob, within
from jupyter_elastic.views.pool_model import PoolModel
from jupyter_elastic.views.pool_screen import PoolScreen
from jupyter_elastic.views.speeds import Speeds
from jupyter_elastic.views.timeline_follower import TimelineFollower
from jupyter_elastic.views.timeline_screen import TimelineLook, TimelineScreen

RETRY_S = 1.0
"""Seconds between checks whether the daemon lives, why jobs wait, and whether to ask policies again."""
ASK_S = 10.0
KEEP_S = 300.0
"""Seconds that a job stays followed after its last view."""
POLLED_S = 30.0
"""Seconds after the last view for which waits are forecast."""
HISTORY_EVENTS = 20_000
"""Maximum number of past events in the pool's history."""

_log = logging.getLogger("jupyter_elastic")
_log.addHandler(logging.NullHandler())


class PoolFollower:
    """A view of the pool and its jobs in this process. `clock` measures the time since the last view."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        start: bool = True,
        log: Any = _log,
        clock: forecasts.Clock = time.monotonic,
    ) -> None:
        self.endpoint, self.start, self.log, self._clock = endpoint, start, log, clock
        self.client: AsyncClient | None = None
        self.pool = PoolModel()
        self.jobs: dict[JobId, FollowedJob] = {}
        self.waits = forecasts.Waits(clock)
        self.shadows = forecasts.Shadows(clock)
        self.timeline = TimelineFollower(self.waits, self.changed, clock)
        self._change = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._follows_pool = asyncio.Event()
        self._up_at = time.time()
        self._polled_at = -math.inf
        self._tasks: asyncio.TaskGroup

    # --- for its owner ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for work in (self._follow_pool(), self._watch(), self._forecast(), self._ask_shadows()):
                    self._begin(work)
        finally:
            if self.client is not None:
                await self.client.close()

    def follow_pool(self) -> None:
        """Follow the whole pool from now on, not only single jobs."""
        self._follows_pool.set()

    def follow(self, info: JobInfo, kind: str) -> FollowedJob:
        """Follow a job from its first event on; return the existing follower if there is one."""
        job = self.jobs.get(info.job)
        if job is None:
            job = self.jobs[info.job] = FollowedJob(info, kind, self._clock, self.changed)
            job.task = self._begin(self._follow_job(job))
        job.polled_at = self._clock()
        return job

    async def job(self, number: JobId) -> FollowedJob:
        """Return the job of this number; NotFound when there is none."""
        if (job := self.jobs.get(number)) is not None:
            job.polled_at = self._clock()
            return job
        answer = expect(await self.ask(wire.ListJobs(all=True, job=number)), wire.Jobs)
        return self.follow(answer.jobs[0], self.pool.kind)

    async def connect(self) -> AsyncClient:
        """Return the connection, made at the first call; DaemonUnreachable when no daemon can be started."""
        async with self._connecting:
            if self.client is None:
                if not self.endpoint:
                    await asyncio.to_thread(services.ensure, start=self.start)
                self.client = AsyncClient(self.endpoint).start()  # finds the daemon's keys beside its address
        return self.client

    async def ask(self, ask: wire.AnyAsk) -> wire.AnyAnswer:
        """Send the daemon a request; raises the errors of `AsyncClient.ask`."""
        return await (await self.connect()).ask(ask, timeout_s=ASK_S)

    async def begin_shadow(self, name: str, options: dict[str, Any]) -> None:
        """Ask this policy beside the active one from now on; undo that if the daemon does not answer."""
        undo = self.shadows.begin(name, options)
        try:
            await self.shadows.renew(self.ask, self.pool.seq)
        except ElasticError:
            undo()
            raise
        finally:
            self._show_shadows()

    def end_shadow(self, name: str) -> None:
        """Stop asking this policy; NotFound when it is not asked."""
        self.shadows.end(name)
        self._show_shadows()

    def _show_shadows(self) -> None:
        self.pool.shadows = self.shadows.rows
        self.changed()

    def timeline_screen(self, look: TimelineLook) -> TimelineScreen:
        """Return the timeline for a viewer; at first its past follows a moment later (`loaded`)."""
        now = time.time()
        if self.pool.hosts_known:
            self.timeline.look(look, now, self.ask, self._begin)
        return self.timeline.screen(self.pool, look, now)

    def screen(self, offset: int, limit: int | None) -> PoolScreen:
        """Return the pool's page for a viewer."""
        self._polled_at = self._clock()
        if not self.up:
            self.pool.problem = ""  # that of the last answer may be over
        return self.pool.screen(time.time(), limit=limit, offset=offset)

    @property
    def up(self) -> bool:
        """True while the daemon answers, and the pool, if it is followed, is known."""
        connected = self.client is not None and self.client.connected
        return connected and (self.pool.hosts_known or not self._follows_pool.is_set())

    @property
    def down_since(self) -> float | None:
        """Seconds since the epoch at which the daemon stopped answering; None while it answers."""
        return None if self.up else self._up_at

    @property
    def notice(self) -> str:
        """Text on a job's page while the daemon does not answer."""
        if self.up or time.time() - self._up_at < RETRY_S:
            return ""
        since = time.strftime("%H:%M:%S", time.localtime(self._up_at))
        return f"The pool has not answered since {since}. The job goes on; this view reconnects by itself."

    # --- changes ------------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Wake all tasks that wait for a change."""
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def changes(self, pace_s: float, tick_s: float) -> AsyncIterator[None]:
        """Yield now and after each change, at most every `pace_s` seconds; without a change after `tick_s` more."""
        while True:
            change = self._change
            yield
            await asyncio.sleep(pace_s)
            await within(tick_s, change)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task whose exceptions end no other task."""

        async def logged() -> None:
            try:
                await work
            except Exception:
                self.log.exception("jupyter_elastic: the pool's follower")

        return self._tasks.create_task(logged())

    async def _follow_pool(self) -> None:
        await self._follows_pool.wait()
        while True:
            try:
                await self._fold_pool(await self.connect())
            except (ElasticError, OSError) as problem:
                self.log.debug("pool: %s", problem)
            await asyncio.sleep(RETRY_S)

    async def _fold_pool(self, client: AsyncClient) -> None:
        """Start from the daemon's answers, read the history before them, fold the events after them."""
        model = await _present(self.ask)
        past = self.pool if 0 < self.pool.seq <= model.seq else _empty_before(model)
        model.history, model.switches, model.notes = past.history, past.switches, past.notes
        model.ended = past.ended
        model.forecasts, model.shadows = self.waits.ranges, self.shadows.rows
        self.pool, begun_at = model, model.seq
        self.timeline.forget()
        self.changed()
        async with aclosing(client.events(past.seq)) as events:
            async for event in events:
                if event.seq <= begun_at:
                    past.fold(event)
                    if event.seq < begun_at:
                        continue
                if past.jobs:  # an answer holds no more jobs than fit into a frame; the history knows the others
                    model.adopt(past.jobs.values())
                    past.jobs = {}
                model.fold(event)
                self.timeline.fold(event)
                self.changed()

    async def _follow_job(self, job: FollowedJob) -> None:
        """Fold the job's events until its end and the end of its session's retention; outlast a daemon's absence."""
        while not job.model.ended or job.model.seq == 0:
            try:
                await self._fold_job(job)
                job.problem = ""
            except ElasticError as problem:
                job.problem = f"no news: {problem}"
                job.changed()
                await asyncio.sleep(RETRY_S)
        job.up_to_date = True
        job.changed(at_once=True)

    async def _fold_job(self, job: FollowedJob) -> None:
        model = JobModel(job.number, kind=job.model.kind)
        speeds = Speeds()
        model.explanation, model.until, model.forecast = job.model.explanation, job.model.until, job.model.forecast

        def caught_up() -> None:
            job.up_to_date = True
            job.changed(at_once=True)

        async with aclosing((await self.connect()).events(0, job.number, caught_up=caught_up)) as events:
            async for event in events:
                before = model.slots
                with job.lock:
                    model.fold(event)
                    speeds.fold(event)
                    if model.spec is not None:  # the first event is there: the events replace the short description
                        job.model, job.speeds = model, speeds
                job.changed(at_once=model.ended or model.slots != before)
                if model.ended and model.retention is None:
                    return

    async def _watch(self) -> None:
        """Notice that the daemon is away or back, or takes no jobs; forget jobs without viewers; ask why jobs wait."""
        was_up = False
        while True:
            await asyncio.sleep(RETRY_S)
            if self.up:
                self._up_at = time.time()
            if self.up != was_up:
                was_up = self.up
                self.changed()
            if self.up and self._clock() - self._polled_at < POLLED_S:
                with contextlib.suppress(ElasticError):  # no event says it: events are in the journal
                    before, self.pool.problem = self.pool.problem, await _read_problem(self.ask)
                    if self.pool.problem != before:
                        self.changed()
            for job in list(self.jobs.values()):
                if self._clock() - job.polled_at > KEEP_S:
                    del self.jobs[job.number]
                    assert job.task is not None
                    job.task.cancel()
                elif job.model.phase == "queued" and self.up:
                    with contextlib.suppress(ElasticError):
                        answer = expect(await self.ask(wire.ExplainJob(job=job.number)), wire.Explanation)
                        if job.model.explain(answer.text, answer.until):
                            job.changed()

    async def _forecast(self) -> None:
        """Forecast the waits of queued jobs while there are viewers."""
        while True:
            await asyncio.sleep(RETRY_S)
            since = self._clock() - POLLED_S
            queued = [job for job in self.jobs.values() if job.model.phase == "queued" and job.polled_at > since]
            ahead = self.timeline.polled_at
            if self.up and (ahead or queued or (self.pool.queued and self._polled_at > since)):
                try:
                    renewed = await self.waits.renew(self.ask, ends=ahead)
                except Exception:  # a policy may be any user's code
                    self.log.exception("jupyter_elastic: no wait can be forecast")
                    continue
                if renewed:
                    self.pool.forecasts = self.waits.ranges
                    self.changed()
            for job in self.jobs.values():  # views update their clocks every second anyway, and show the forecasts then
                found = self.waits.ranges.get(job.number)
                job.model.forecast = found if found is None or math.isfinite(found[1]) else None

    async def _ask_shadows(self) -> None:
        """Ask the shadow policies, viewed or not: their answers gain value the longer they were asked."""
        while True:
            await asyncio.sleep(RETRY_S)
            if self.up and self.pool.hosts_known and self.shadows.due(self.pool.seq):
                try:
                    await self.shadows.renew(self.ask, self.pool.seq)
                    self._show_shadows()
                except ElasticError as problem:
                    self.log.debug("shadows: %s", problem)


async def _present(ask: Callable[[wire.AnyAsk], Awaitable[wire.AnyAnswer]]) -> PoolModel:
    """Return the pool as the daemon describes it now."""
    welcome = expect(await ask(wire.Hello(version=wire.VERSION)), wire.Welcome)
    jobs = expect(await ask(wire.ListJobs(limit=3_000)), wire.Jobs)
    hosts = expect(await ask(wire.ListHosts()), wire.Hosts)
    policies = expect(await ask(wire.ListPolicies()), wire.Policies)
    active = next((policy for policy in policies.policies if policy.active), None)
    return PoolModel(
        seq=min(jobs.seq, hosts.seq),
        jobs=jobs.jobs,
        slots=hosts.slots,
        others=hosts.others,
        policy=active.name if active else welcome.policy,
        policy_options=active.options if active else {},
        kind=hosts.kind,
        user=welcome.user,
        administers=welcome.administers,
        maintenance=next((one.text for one in hosts.drains if not one.target), ""),
        problem=await _read_problem(ask),
    )


async def _read_problem(ask: Callable[[wire.AnyAsk], Awaitable[wire.AnyAnswer]]) -> str:
    return expect(await ask(wire.ReadProblem()), wire.Problem).text


def _empty_before(model: PoolModel) -> PoolModel:
    """Return a model to fold the history into: the same slots, empty; its jobs come from the events themselves."""
    since = max(0, model.seq - HISTORY_EVENTS)
    slots = [SlotInfo(slot=slot.slot, state="free", device=slot.device) for slot in model.slots.values()]
    return PoolModel(seq=since, slots=slots, kind=model.kind)
