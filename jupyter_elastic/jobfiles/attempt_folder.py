"""Reads and writes the files of one attempt, from which an agent or driver goes on after a crash.

`<job folder>/attempt.N/` holds `order.json` (the Launch, written before anything is started), `driver.lock` (held by
the one driver), `driver.json` (pid and start time of the driver and of all its workers), `driver.log`, and at the end
`exit.json` (the ExitReported), which is the truth about an attempt that is over. Knows files; must not know sockets or
how processes are started.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from jupyter_elastic.platform import paths, private_files
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.platform.processes import ProcessId
from jupyter_elastic.types import ExitReported, Launch

SOCKET_NAME = "driver.sock"
"""The driver's socket in the attempt's runtime folder."""
LONGEST_LOG_LINE = 300
_OLD_EXIT, _EXIT = b'{"type":"ExitSeen",', b'{"type":"ExitReported",'
"""Start of `exit.json` in its first version, and now. An end that is not read would be reported as `lost`."""


class DriverRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`driver.json`: the processes of an attempt, each as (pid, start time)."""

    job: int
    attempt: int
    driver: ProcessId
    workers: tuple[ProcessId, ...] = ()


class AttemptFolder:
    """The files of one attempt. Reading an absent or damaged file returns None."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, job_folder: str | Path, attempt: int) -> AttemptFolder:
        """Return the folder of an attempt of the job that lives in `job_folder`."""
        return cls(Path(job_folder) / f"attempt.{attempt}")

    @property
    def job_folder(self) -> Path:
        """The job's own folder."""
        return self.path.parent

    @property
    def runtime(self) -> Path:
        """The attempt's folder for sockets: short, private, and the same in every process."""
        name = hashlib.sha256(os.fsencode(self.path.absolute())).hexdigest()[:10]
        return paths.runtime_dir() / f"a-{name}"

    @property
    def log(self) -> Path:
        """The log of driver and engine."""
        return self.path / "driver.log"

    def create(self, launch: Launch) -> None:
        """Make the folder and write the order, from which a later agent identifies the attempt."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        private_files.write_json(self.path / "order.json", launch)

    def order(self) -> Launch | None:
        """Read the Launch of this attempt."""
        return private_files.read_json(self.path / "order.json", Launch)

    def write_record(self, record: DriverRecord) -> None:
        """Write atomically which processes belong to the attempt."""
        private_files.write_json(self.path / "driver.json", record)

    def record(self) -> DriverRecord | None:
        """Read the processes of the attempt as last written."""
        return private_files.read_json(self.path / "driver.json", DriverRecord)

    def write_exit(self, seen: ExitReported) -> None:
        """Write the attempt's end; the end is on disk when this returns."""
        private_files.write_json(self.path / "exit.json", seen, sync=True)

    def exit(self) -> ExitReported | None:
        """Read the attempt's end; None while the attempt has not ended."""
        try:
            content = (self.path / "exit.json").read_bytes()
            return msgspec.json.decode(content.replace(_OLD_EXIT, _EXIT, 1), type=ExitReported)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def whose(self) -> tuple[int, int] | None:
        """Return the job and attempt that the folder's files belong to; None while there is no file."""
        found = self.exit() or self.record() or self.order()
        return None if found is None else (found.job, found.attempt)

    @property
    def lock(self) -> Lock:
        """Lock that the attempt's one driver holds for as long as it lives."""
        return Lock(self.path / "driver.lock")

    def last_log_line(self) -> str:
        """Read the last line of the driver's log; empty without one."""
        try:
            with self.log.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 4096))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1][-LONGEST_LOG_LINE:] if lines else ""

    def clear_runtime(self) -> None:
        """Remove the folder of sockets."""
        shutil.rmtree(self.runtime, ignore_errors=True)


def attempts(jobs: Path) -> Iterator[AttemptFolder]:
    """Yield every attempt that has a folder below `jobs`."""
    for job in _subfolders(jobs):
        for path in _subfolders(job):
            if path.name.startswith("attempt."):
                yield AttemptFolder(path)


def _subfolders(path: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)
