"""Keeps the views of a process without an event loop of its own (kernel, terminal) up to date.

Runs a `PoolFollower` in a thread, so that a busy kernel does not stop its views. Passes screens to sinks at most three
times a second: the one place where a screen's pace is set. Must not know how anything is drawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from jupyter_elastic.client import services
from jupyter_elastic.client.job import Job
from jupyter_elastic.types.errors import ElasticError
from jupyter_elastic.views.followed_job import FollowedJob
from jupyter_elastic.views.follower import PoolFollower
from jupyter_elastic.views.output import Output

PUSH_S = 1 / 3
"""Minimum seconds between redraws of a view: seems immediate to a person, for less than 1 % of a core."""
POLL_S = 0.002
"""First pause in seconds between reads for a rank's first line; pauses grow with the time waited."""
TICK_S = 1.0
"""Seconds between updates of the clocks on a job's view (time to go, the band) without news."""
POOL_PUSH_S, POOL_TICK_S = 0.5, 10.0
"""Pool page: minimum seconds between redraws, seconds between updates without news."""
BYTES_PER_S = 1_000_000
"""Maximum bytes per second of a view's output."""
START_S = 2.0
"""Seconds between checks that daemon and agent live while a job waits for them."""

JobSink = Callable[["Output | None"], None]
"""Draws a job; takes the output when it has changed. Called on the updater's thread."""
PoolSink = Callable[[PoolFollower], None]
"""Takes the pool's follower after a change. Called on the updater's thread."""
_T = TypeVar("_T")


class Updater:
    """The thread that feeds views. Use `updater()`."""

    def __init__(self) -> None:
        self.follower = PoolFollower()
        self._drawn: list[FollowedJob] = []
        """Jobs that are drawn and have not ended."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="jupyter-elastic views", daemon=True).start()
        self.begin(self.follower.run())
        self.begin(self._keep_started())

    def begin(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the thread; return a future that waits for it, or cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(self._report)
        return future

    def _report(self, future: Future[Any]) -> None:
        """Log why a view has ended: most callers never ask the future."""
        if not future.cancelled() and (problem := future.exception()) is not None:
            self.follower.log.error("jupyter_elastic: the views", exc_info=problem)

    def show_job(self, job: Job, sink: JobSink, kind: str = "cpu") -> tuple[FollowedJob, threading.Event]:
        """Let a sink draw the job until its end; the event is set once the end was drawn."""
        info, ended = job.known, threading.Event()

        async def follow() -> FollowedJob:
            return self.follower.follow(info, kind)

        async def draw() -> None:
            self._drawn.append(followed)
            try:
                await draw_job(followed, sink)
            finally:
                self._drawn.remove(followed)
                ended.set()
            await draw_hold(followed, sink)

        followed = self.begin(follow()).result()
        self.begin(draw())
        return followed, ended

    def show_pool(self, sink: PoolSink) -> Callable[[], object]:
        """Let a sink draw the pool from now on, until the returned function is called."""

        async def draw() -> None:
            self.follower.follow_pool()
            async for _ in self.follower.changes(POOL_PUSH_S, POOL_TICK_S):
                if self.follower.pool.hosts_known:
                    with contextlib.suppress(BaseException):  # a closed view, or what somebody has it call
                        sink(self.follower)

        return self.begin(draw()).cancel

    def redraw(self) -> None:
        """Draw the pool again soon: a sink wants to show another part."""
        self._loop.call_soon_threadsafe(self.follower.changed)

    async def _keep_started(self) -> None:
        """Start daemon and agent again if one is gone and a job waits for it."""
        while True:
            await asyncio.sleep(START_S)
            if any(job.model.phase in {"queued", "starting"} or not self.follower.up for job in self._drawn):
                with contextlib.suppress(ElasticError):
                    await asyncio.to_thread(services.ensure)


async def draw_job(job: FollowedJob, sink: JobSink) -> None:
    """Pass the newest state of a job to a sink until its end."""
    now = asyncio.get_running_loop().time
    began = now()
    drawn, drawn_at, next_output = -1, began, began
    last = False
    while not last:
        last = job.settled
        job.read_files()
        if last or job.version != drawn or now() - drawn_at >= TICK_S:
            output = None
            if last or now() >= next_output:
                output = job.outputs.snapshot()
                size = sum(len(part) + 8 for lines in output.values() for line in lines for part in line)
                next_output = now() + size / BYTES_PER_S
                drawn = job.version
            drawn_at = now()
            with contextlib.suppress(BaseException):  # a closed view, or what somebody has it call
                sink(output)
        if not last:
            await _until_next(job, now() - began)


async def draw_hold(job: FollowedJob, sink: JobSink) -> None:
    """Let a sink count down while the session of an ended job retains slots."""
    while (kept := job.model.retention) is not None and (kept.exclusive or time.time() < kept.until):
        await job.wait_for_news(TICK_S)
        with contextlib.suppress(BaseException):  # a closed view, or what somebody has it call
            sink(None)


async def _until_next(job: FollowedJob, age_s: float) -> None:
    """Wait for the next drawing; less long for changes to show at once, and for a rank's first line."""
    now = asyncio.get_running_loop().time
    until = now() + PUSH_S
    while (left := until - now()) > 0 and not job.settled:
        silent = job.silent_ranks()
        pause = min(left, PUSH_S / 5, max(POLL_S, age_s / 100)) if silent else left
        if await job.wait_for_news(pause) or (silent and job.read_files() and job.silent_ranks() < silent):
            return


_updater: Updater | None = None
_updater_lock = threading.Lock()


def updater() -> Updater:
    """Return the process's one updater; created at the first call."""
    global _updater
    with _updater_lock:
        if _updater is None:
            _updater = Updater()
        return _updater
