"""Brings a job's commits from shared memory to disk periodically, so that they survive the machine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from jupyter_elastic.hosts.connection.host_connection import HostConnection
from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.types.errors import EngineError

EVERY_S = 10.0
"""Maximum seconds until the last commit is brought to disk."""

log = logging.getLogger(__name__)


class CommitFlusher:
    """Tracks for how long the last commit is in memory alone."""

    def __init__(self, commits: Commits, now: Callable[[], float] = time.monotonic) -> None:
        self._commits = commits
        self._now = now
        self._unsaved_since: float | None = None
        self._missed_since: float | None = None
        """Time of the first commit that could not be brought: the next one does not wait."""
        self._worker_host: HostConnection | None = None
        """Connection to the host that has the newest commit; None if that is this host."""
        self._fetching: asyncio.Task[None] | None = None

    def saved(self, *, durable: bool, worker_host: HostConnection | None = None) -> None:
        """Record that a worker has saved a commit, here or on another host; `durable`: on disk there."""
        self._worker_host = worker_host
        if durable and worker_host is None:
            self._unsaved_since = None
        elif self._unsaved_since is None:
            self._unsaved_since = self._now() if self._missed_since is None else self._missed_since

    async def bring(self) -> None:
        """Bring the newest commit to this host. If the commit's host is lost, the one that was brought last counts."""
        await self._bring(self._unsaved_since)

    async def _bring(self, since: float | None) -> None:
        """Bring commits that have been on another host alone since then."""
        worker_host, self._worker_host = self._worker_host, None
        if worker_host is None:
            return
        self._unsaved_since = None
        try:
            if not worker_host.lost:
                await worker_host.fetch_commit()
                self._missed_since = None
                return
        except (EngineError, OSError) as problem:
            log.warning("the commit on host %s could not be brought: %s", worker_host.name, problem)
        if self._missed_since is None:
            self._missed_since = self._now() if since is None else since

    async def flush_if_due(self) -> None:
        """Bring the last commit to disk when it is time; after a full disk, try again at the next commit."""
        if self._unsaved_since is not None and self._now() - self._unsaved_since > EVERY_S:
            since, self._unsaved_since = self._unsaved_since, None
            if self._worker_host is not None:  # the commit may be large and the network slow: nothing waits for it
                if self._fetching is None or self._fetching.done():
                    self._fetching = asyncio.create_task(self._bring(since))
                return
            try:
                await asyncio.to_thread(self._commits.to_disk)
            except OSError as problem:
                log.warning("the commit could not be brought to disk: %s", problem)
