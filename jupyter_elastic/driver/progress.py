"""Progress of one attempt: at most four lines a second into `progress.jsonl`, and as many reports.

Knows the file and how two reports become one; must not know who reads them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from jupyter_elastic.platform import private_files
from jupyter_elastic.types import Launch, Progress, ProgressReported, Report

INTERVAL_S = 0.25
"""Each report becomes an event in the journal and in every view: no more than a person can follow."""

log = logging.getLogger(__name__)


def merged(older: Progress, newer: Progress) -> Progress:
    """Two reports of one interval as one: the newer one's numbers, the older one's where the newer says nothing."""
    given = {name: value for name in Progress.__struct_fields__ if (value := getattr(newer, name)) is not None}
    given["metrics"] = older.metrics | newer.metrics
    return msgspec.structs.replace(older, **given)


class ProgressWriter:
    """Coalesces reports; the first of a burst goes out at once. Lives in an asyncio loop."""

    def __init__(self, path: Path, launch: Launch, send: Callable[[Report], None]) -> None:
        self.path = path
        self.attempt = launch.attempt
        self.newest: ProgressReported | None = None
        """The last report that went out."""
        self._send = send
        self._pending: ProgressReported | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sent = -INTERVAL_S
        self._complained = False

    def put(self, seen: ProgressReported) -> None:
        """Take a report."""
        if self._pending is not None:
            seen = msgspec.structs.replace(seen, progress=merged(self._pending.progress, seen.progress))
        self._pending = seen
        wait_s = self._sent + INTERVAL_S - time.monotonic()
        if wait_s <= 0:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.flush)

    def flush(self) -> None:
        """Let out what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending is None:
            return
        self.newest, self._pending = self._pending, None
        self._sent = time.monotonic()
        self._write(self.newest)
        self._send(self.newest)

    def _write(self, seen: ProgressReported) -> None:
        line = {"at": seen.at, "attempt": self.attempt, **msgspec.to_builtins(seen.progress)}
        try:
            with private_files.open_private(self.path, append=True) as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as problem:
            if not self._complained:
                log.warning("can't write %s: %s", self.path, problem)
            self._complained = True
