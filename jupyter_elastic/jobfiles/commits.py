"""Stores the last commit of a job: opaque bytes that outlive the process which made them.

It lies in shared memory (`/dev/shm/jupyter-elastic-<uid>/<job folder's hash>/commit`), so that saving costs a copy, and
is brought to disk (`<job folder>/commit/commit`) when it must survive the machine. Every write is a new file and a
rename, so a reader never sees half of one. Knows files only.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import shutil
import threading
from pathlib import Path

from jupyter_elastic.platform import private_files
from jupyter_elastic.platform.paths import SHARED_MEMORY
from jupyter_elastic.types.errors import ElasticError


class Commits:
    """The commits of the job that lives in `folder`; the newest counts. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        name = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
        self._root = SHARED_MEMORY / f"jupyter-elastic-{os.getuid()}"
        self.shared = self._root / name / "commit"
        self.disk = folder / "commit" / "commit"
        self._lock = threading.Lock()
        self._on_disk: tuple[int, int] | None = None

    def save(self, *content: bytes | memoryview, durable: bool = False) -> None:
        """Replace the commit by `content`; `durable`: it is on disk on return.

        OSError when neither shared memory nor disk has room for it; the commit before is kept then.
        """
        try:
            private_files.private_dir(self._root)
            private_files.private_dir(self.shared.parent)
            private_files.write_private(self.shared, *content)
        except (OSError, ElasticError):  # no or full shared memory: the disk is slower and as good
            with self._lock:
                self._write_to_disk(*content)
            with contextlib.suppress(OSError):
                self.shared.unlink(missing_ok=True)
            return
        if durable:
            self.to_disk()

    def load(self) -> memoryview | None:
        """The newest commit; None before the first. What somebody else may have put into shared memory is not read.

        It is mapped and not copied, and stays what it is when another commit replaces it.
        """
        for path in (self.shared, self.disk) if self._is_ours() else (self.disk,):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return None

    def _is_ours(self) -> bool:
        """Whether nobody else can have written what lies in shared memory: it is unpickled."""
        return private_files.is_private(self._root) and private_files.is_private(self.shared.parent)

    def to_disk(self) -> bool:
        """Write the newest commit to disk; returns whether one was there that was not on disk yet."""
        with self._lock:
            if not self._is_ours():
                return False
            try:
                with self.shared.open("rb") as file:
                    status = os.fstat(file.fileno())
                    version = (status.st_ino, status.st_mtime_ns)
                    if version == self._on_disk:
                        return False
                    blob = file.read()
            except FileNotFoundError:
                return False
            self._write_to_disk(blob)
            self._on_disk = version
            return True

    def release(self, *, keep: bool) -> None:
        """Free the shared memory at the end of an attempt; with `keep` only once the commit is on disk."""
        if keep:
            try:
                self.to_disk()
            except OSError:
                return
        self.drop_from_memory()

    def drop_from_memory(self) -> None:
        """Free the shared memory."""
        shutil.rmtree(self.shared.parent, ignore_errors=True)

    def _write_to_disk(self, *content: bytes | memoryview) -> None:
        self.disk.parent.mkdir(mode=0o700, exist_ok=True)
        private_files.write_private(self.disk, *content, sync=True)
