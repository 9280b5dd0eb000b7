"""Writes the files of a driver: the processes of its attempt, and the attempt's progress."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder, DriverRecord
from jupyter_elastic.platform import private_files, processes
from jupyter_elastic.types import Launch, ProgressReported

log = logging.getLogger(__name__)


class Records:
    """`driver.json` and `progress.jsonl`. Logs a full disk, raises nothing. `pids` returns the workers' processes."""

    def __init__(self, folder: AttemptFolder, launch: Launch, pids: Callable[[], list[processes.ProcessId]]) -> None:
        self.recorded: list[processes.ProcessId] | None = None
        self._folder = folder
        self._progress = folder.job_folder / "progress.jsonl"
        self._launch = launch
        self._pids = pids
        self._me = processes.this_process()
        self._complained = False

    async def keep_processes(self) -> None:
        """Keep `driver.json` current: check often while processes come and go, seldom while nothing happens."""
        quiet_s = 0.0
        while True:
            await asyncio.sleep(0.02 if quiet_s < 2.0 else 0.2)
            quiet_s = 0.0 if self.write_processes() else quiet_s + 0.02

    def write_processes(self) -> bool:
        """Write `driver.json` if it is out of date; returns True if it was written."""
        pids = self._pids()
        if pids == self.recorded:
            return False
        launch = self._launch
        record = DriverRecord(job=launch.job, attempt=launch.attempt, driver=self._me, workers=tuple(sorted(pids)))
        try:
            self._folder.write_record(record)
        except OSError as problem:
            log.warning("can't write driver.json: %s", problem)
            return False
        self.recorded = pids
        return True

    def append_progress(self, report: ProgressReported) -> None:
        """Add a line to `progress.jsonl`."""
        line = {"at": report.at or time.time(), "attempt": self._launch.attempt, **msgspec.to_builtins(report.progress)}
        try:
            with private_files.open_private(self._progress, append=True) as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as problem:
            if not self._complained:
                log.warning("can't write %s: %s", self._progress, problem)
            self._complained = True
