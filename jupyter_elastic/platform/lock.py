"""Implements a file lock that ends with its holder: one daemon per pool, one agent per user, one writer per journal.

Knows flock; must not know what is locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

_ATTEMPTS = 5


class Lock:
    """An flock on a file, held by this process until `release()` or its death, whatever kind of death.

    The file must stay in its place: a lock whose file is removed can be held twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def acquire(self, *, wait: bool = False, attempts: int = _ATTEMPTS) -> bool:
        """Take the lock; False if another process holds it (only without `wait`). Writes the pid into the file."""
        file = FileIO(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
        for attempt in range(attempts):
            try:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # held, or somebody asks this very moment whether it is (`holder`)
                if attempt == attempts - 1:
                    file.close()
                    return False
                time.sleep(0.02)
        file.truncate()
        file.write(f"{os.getpid()}\n".encode())
        self._file = file
        return True

    def share(self, limit_s: float) -> bool:
        """Take the lock in shared mode; False if another process holds it alone for `limit_s` seconds."""
        file = FileIO(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
        until = time.monotonic() + limit_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    file.close()
                    return False
                time.sleep(0.02)
            else:
                self._file = file
                return True

    def release(self) -> None:
        """Release the lock; harmless when it isn't held."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the lock and hold it."""
        self.acquire(wait=True)
        try:
            yield
        finally:
            self.release()

    def holder(self) -> int | None:
        """Return the pid of the process that holds the lock, as far as the file names it; None when it is free."""
        try:
            with self.path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(file.read().strip() or 0)
        except (OSError, ValueError):
            return None
        return None
