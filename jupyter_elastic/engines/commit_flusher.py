"""Brings a job's commits from shared memory to disk, now and then, so that they survive the machine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from jupyter_elastic.jobfiles.commits import Commits

EVERY_S = 10.0
"""The last commit is brought to disk at least this often."""

log = logging.getLogger(__name__)


class CommitFlusher:
    """Knows since when the last commit is in memory alone."""

    def __init__(self, commits: Commits, now: Callable[[], float] = time.monotonic) -> None:
        self._commits = commits
        self._now = now
        self._unsaved_since: float | None = None

    def saved(self, *, durable: bool) -> None:
        """A worker has saved a commit; `durable`: on disk."""
        if durable:
            self._unsaved_since = None
        elif self._unsaved_since is None:
            self._unsaved_since = self._now()

    async def flush_if_due(self) -> None:
        """Bring the last commit to disk when it is time; a disk that is full is tried again at the next commit."""
        if self._unsaved_since is not None and self._now() - self._unsaved_since > EVERY_S:
            self._unsaved_since = None
            try:
                await asyncio.to_thread(self._commits.to_disk)
            except OSError as problem:
                log.warning("the commit could not be brought to disk: %s", problem)
