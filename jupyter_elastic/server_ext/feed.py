"""What the server knows of the pool: one connection, one fold for the pool, one for each job that somebody looks at.

Keeps itself up: whatever becomes of the daemon, it connects again, begins from the daemon's answers and folds the
events after them. Knows the client and the models; must not know HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from jupyter_elastic.client import AsyncClient, services
from jupyter_elastic.client.job_model import JobModel
from jupyter_elastic.errors import DaemonUnreachable, ElasticError, NotFound
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobId, JobInfo
from jupyter_elastic.widgets import forecasts, pool_feed, shadow
from jupyter_elastic.widgets.output import Outputs
from jupyter_elastic.widgets.pool_model import PoolModel
from jupyter_elastic.widgets.pool_screen import PoolScreen

RETRY_S = 1.0
KEEP_S = 300.0
"""How long a job that nobody looks at any more stays folded."""
LOOKED_S = 30.0
"""So long after somebody looked at the pool waits are foreseen."""


class JobFeed:
    """One job, folded from its first event on."""

    def __init__(self, info: JobInfo, kind: str) -> None:
        self.info = info
        self.model = JobModel(info.job, kind=kind)
        self.model.describe(info)
        self.outputs = Outputs(self.folder)
        self.task: asyncio.Task[None] | None = None
        self.used_at = time.monotonic()

    @property
    def folder(self) -> Path:
        """The job's folder."""
        return Path(self.info.spec.folder)


class Feed:
    """The pool as the server sees it. `changed` is set and cleared at each change; `version` counts them."""

    def __init__(self, *, endpoint: str | None, start: bool, log: Any) -> None:
        self.endpoint, self.start, self.log = endpoint, start, log
        self.client: AsyncClient | None = None
        self.pool = PoolModel()
        self.jobs: dict[JobId, JobFeed] = {}
        self.down_since: float | None = time.time()
        self.waits = forecasts.Waits()
        self.shadows = shadow.Shadows()
        self.looked_at = 0.0
        """When (monotonic) somebody last was shown the pool or a job."""
        self.version = 0
        self._condition = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Connect and follow in the background, for as long as the server lives."""
        self._spawn(self._follow_for_ever())
        self._spawn(self._watch())
        self._spawn(self._foresee())
        self._spawn(self._shadow())

    async def end(self) -> None:
        """Close the connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.client is not None:
            await self.client.close()

    async def ask(self, ask: wire.AnyAsk) -> wire.AnyAnswer:
        """Ask the daemon; DaemonUnreachable at once while it is away."""
        if self.client is None:
            raise DaemonUnreachable("the pool's daemon doesn't answer yet; the next attempt is under way")
        return await self.client.ask(ask, timeout_s=10)

    async def wait_for_change(self, version: int, timeout_s: float) -> int:
        """Wait until there is something newer than `version`, at most `timeout_s`; the present version."""
        with contextlib.suppress(TimeoutError):
            async with self._condition, asyncio.timeout(timeout_s):
                await self._condition.wait_for(lambda: self.version > version)
        return self.version

    async def job(self, job: JobId) -> JobFeed:
        """The feed of a job, begun when it is first asked for."""
        feed = self.jobs.get(job)
        if feed is None:
            answer = await self.ask(wire.ListJobs(all=True, job=job))
            if not isinstance(answer, wire.Jobs) or not answer.jobs:
                raise NotFound(f"there is no job {job}; `%elastic jobs` lists those there are")
            feed = self.jobs.setdefault(job, JobFeed(answer.jobs[0], self.pool.kind))
            if feed.task is None:
                feed.task = self._spawn(self._follow_job(feed))
        feed.used_at = self.looked_at = time.monotonic()
        return feed

    async def ask_shadows(self) -> None:
        """Ask the policies that are asked beside the active one, and show what they say."""
        await self.shadows.renew(self.ask, self.pool.seq)
        self.pool.shadows = self.shadows.rows
        await self._changed()

    def screen(self, offset: int, limit: int) -> PoolScreen:
        """The pool's page for somebody who looks."""
        self.looked_at = time.monotonic()
        return self.pool.screen(time.time(), limit=limit, offset=offset)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _changed(self) -> None:
        async with self._condition:
            self.version += 1
            self._condition.notify_all()

    async def _follow_for_ever(self) -> None:
        while True:
            try:
                await self._follow()
            except ElasticError as problem:
                self.log.debug("pool: %s", problem)
            except OSError as problem:
                self.log.warning("pool: %s", problem)
            self.down_since = self.down_since or time.time()
            await self._changed()
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        if not self.endpoint:
            await asyncio.to_thread(services.ensure, start=self.start)
        if self.client is None:
            self.client = AsyncClient(self.endpoint).start()  # which finds the daemon's keys beside its address
        async with aclosing(cast("Any", pool_feed.follow(self.client, self.pool))) as models:
            async for model in models:
                self.pool = model
                self.pool.forecasts, self.pool.shadows = self.waits.ranges, self.shadows.rows
                self.down_since = None if self.client.connected else self.down_since
                await self._changed()

    async def _follow_job(self, feed: JobFeed) -> None:
        assert self.client is not None
        with contextlib.suppress(ElasticError):
            async for event in self.client.events(0, job=feed.info.job):
                feed.model.fold(event)
                await self._changed()
        self.jobs.pop(feed.info.job, None)

    async def _watch(self) -> None:
        """Notice that the daemon is away or back; forget jobs that nobody looks at; ask why queued ones wait."""
        while True:
            await asyncio.sleep(RETRY_S)
            client = self.client
            if client is not None:
                away = not client.connected
                if away and self.down_since is None:
                    self.down_since = time.time()
                    await self._changed()
                elif not away and self.down_since is not None and self.pool.hosts_known:
                    self.down_since = None
                    await self._changed()
            for job, feed in list(self.jobs.items()):
                if time.monotonic() - feed.used_at > KEEP_S and feed.task is not None:
                    feed.task.cancel()
                    self.jobs.pop(job, None)
                elif feed.model.phase == "queued" and client is not None and client.connected:
                    await self._explain(feed)

    async def _foresee(self) -> None:
        """Say how long queued jobs will wait, while somebody looks."""
        while True:
            await asyncio.sleep(RETRY_S)
            looked = time.monotonic() - self.looked_at < LOOKED_S
            if looked and self.client is not None and self.client.connected and self.pool.queued:
                try:
                    renewed = await self.waits.renew(self.ask)
                except Exception:  # a policy may be anybody's
                    self.log.exception("jupyter_elastic: no wait can be foreseen")
                    continue
                if renewed:
                    self.pool.forecasts = self.waits.ranges
                    await self._changed()
            for job, feed in self.jobs.items():
                feed.model.forecast = self.waits.ranges.get(job)

    async def _shadow(self) -> None:
        """Ask the shadows, whether somebody looks or not: what they say is worth more the longer they were asked."""
        while True:
            await asyncio.sleep(RETRY_S)
            if self.client is not None and self.client.connected and self.shadows.due(self.pool.seq):
                try:
                    await self.ask_shadows()
                except ElasticError as problem:
                    self.log.debug("shadows: %s", problem)

    async def _explain(self, feed: JobFeed) -> None:
        with contextlib.suppress(ElasticError):
            answer = await self.ask(wire.ExplainJob(job=feed.info.job))
            if isinstance(answer, wire.Explanation) and feed.model.explain(answer.text, answer.until):
                await self._changed()
