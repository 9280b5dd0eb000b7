"""Follows a job that is viewed: its model, its files and the screen made of both. Must not know the pool."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable

from jupyter_elastic.client.job_model import JobModel
from jupyter_elastic.client.job_screen import JobScreen
from jupyter_elastic.jobfiles import usage, usage_history
from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.types import JobInfo
from jupyter_elastic.views import forecasts
from jupyter_elastic.views.output import Outputs
from jupyter_elastic.views.speeds import Speeds


class FollowedJob:
    """A job that is viewed. One thread folds its events; any thread reads its files and makes its screen."""

    def __init__(
        self,
        info: JobInfo,
        kind: str,
        clock: forecasts.Clock = time.monotonic,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Create it; `wake` is called after each change."""
        self.number = info.job
        self._clock, self._wake = clock, wake
        self.lock = threading.Lock()
        """Held while an event is folded into the model and the speeds, and while a screen is made of both."""
        self.model = JobModel(info.job, kind=kind)
        self.model.describe(info)
        self.files = JobFolder.of(info)
        self.outputs = Outputs(self.files)
        self.up_to_date = False
        """True once all events so far were folded."""
        self.version = 0
        """Number of changes to show so far."""
        self.problem = ""
        """Reason why the job's events can't be read; empty while they can."""
        self.polled_at = clock()
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self.speeds = Speeds()
        self._usage, self._usage_changed = usage_history.UsageHistory(), 0
        """Modification time in nanoseconds of the usage file that was read; 0: there was none."""

    @property
    def settled(self) -> bool:
        """True once the job's end and all of its events are known."""
        return self.model.ended and self.up_to_date

    def screen(self) -> JobScreen:
        """Return the screen to show now."""
        use, changed = usage.read(self.files), _changed(self.files, usage_history.NAME)
        if changed != self._usage_changed:
            self._usage, self._usage_changed = usage_history.read(self.files), changed
        with self.lock:
            self.model.use, self.model.usage = use, self._usage
            if self.model.spec is not None:
                self.model.speeds = self.speeds.fit(self.model.spec.max_slots, self.model.spec.max_servers)
            return self.model.screen(time.time())

    def read_files(self) -> bool:
        """Read the ranks' new output; return whether there was any."""
        self.polled_at = self._clock()
        printed = self.outputs.poll()
        self.version += printed
        with self.lock:
            if self.outputs.ranks and self.model.phase == "queued" and not self.up_to_date:
                self.model.phase = "starting"  # no more is known until the events come
        return printed

    def silent_ranks(self) -> int:
        """Return how many of the known or expected ranks have printed nothing yet."""
        if self.model.phase == "queued" and self.up_to_date:
            return 0
        ranks = self.outputs.ranks.values()
        least = self.model.spec.min_slots if self.model.spec is not None else 1
        return max(len(self.model.slots), least, len(ranks)) - sum(rank.total > 0 for rank in ranks)

    def changed(self, *, at_once: bool = False) -> None:
        """Record a change to draw; `at_once`: draw it immediately (events so far, other slots, the end)."""
        self.version += 1
        if at_once:
            event, self._news = self._news, asyncio.Event()
            event.set()
        self._wake()

    async def wait_for_news(self, timeout_s: float) -> bool:
        """Wait for a change to draw at once, at most `timeout_s`; return whether there was one."""
        return await within(timeout_s, self._news)


async def within(seconds: float, event: asyncio.Event) -> bool:
    """Wait for an event, at most `seconds`; return whether it was set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return False


def _changed(files: JobFolder, name: str) -> int:
    """Return a file's modification time in nanoseconds; 0 if it is missing."""
    try:
        with files.open(name) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return 0
