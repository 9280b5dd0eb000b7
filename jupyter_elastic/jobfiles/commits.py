"""Stores the last commit of a job: opaque bytes that outlive the process that made them.

A commit lies in shared memory (`/dev/shm/jupyter-elastic-<uid>/<job folder's hash>/commit`), so that saving costs a
copy, and is written to disk (`<job folder>/commit/commit`) when it must survive the machine. Every write is a new file
and a rename, so a reader never sees half of one. Knows files only.

The outcomes of the cell's ended trainings lie beside the commit on disk, as `training.<number>`.

A commit may have a folder of shards beside it, which several processes write: `shards.<number>`, with the blob as its
`commit`. The folder counts from the moment that this file is there; until then the previous commit does.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import shutil
import tempfile
import threading
from pathlib import Path

from jupyter_elastic.platform import private_files
from jupyter_elastic.platform.paths import SHARED_MEMORY
from jupyter_elastic.types.errors import ElasticError

MAX_KEPT = 4 * 2**30
"""Maximum bytes of all ended trainings of a job together."""


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
        """Replace the commit by `content`; `durable`: on disk when this returns.

        OSError if neither shared memory nor disk has room for it; the previous commit is kept then.
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

    def replace(self, path: Path) -> None:
        """Move the file `path` to disk as the new commit. OSError when that fails."""
        private_files.private_dir(self.disk.parent)
        path.chmod(0o600)
        with self._lock:
            path.replace(self.disk)
        with contextlib.suppress(OSError):
            self.shared.unlink(missing_ok=True)

    def load(self) -> memoryview | None:
        """Return the newest commit; None before the first. Shared memory that others may have written is not read.

        The commit is mapped and not copied, and does not change when another commit replaces it.
        """
        for path in (self.shared, self.disk) if self._is_ours() else (self.disk,):
            if (found := _mapped(path)) is not None:
                return found
        return None

    def write_training(self, number: int, *outcome: bytes | memoryview) -> None:
        """Write a training's outcome. OSError if there is no room, or all outcomes together would be too large."""
        before = sum(file.stat().st_size for file in self.disk.parent.glob("training.*"))
        if before + sum(map(len, outcome)) > MAX_KEPT:
            raise OSError(errno.EFBIG, f"with the ones before it is larger than {MAX_KEPT / 2**30:.3g} GiB")
        self.disk.parent.mkdir(mode=0o700, exist_ok=True)
        private_files.write_private(self.disk.with_name(f"training.{number}.last"), *outcome)

    def keep_training(self, number: int) -> None:
        """Make the written outcome of the training count."""
        self.disk.with_name(f"training.{number}.last").replace(self.disk.with_name(f"training.{number}"))

    def training(self, number: int) -> memoryview | None:
        """Return a training's outcome; None: the training is not over, or its outcome is not kept."""
        return _mapped(self.disk.with_name(f"training.{number}"))

    def _is_ours(self) -> bool:
        """Return whether nobody else can have written this user's shared memory: its content is unpickled."""
        return private_files.is_private(self._root) and private_files.is_private(self.shared.parent)

    def to_disk(self) -> bool:
        """Write the newest commit to disk; return whether there was one that was not on disk yet."""
        with self._lock:
            if not self._is_ours():
                return False
            if self._shards_to_disk():
                return True
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

    # --- commits with a folder of shards -----------------------------------------------------------------------------

    def new_shards(self, *, disk: bool = False) -> Path:
        """Make an empty folder for the next commit's shards: in shared memory, with `disk` or without any on disk."""
        number = 1 + max(map(_number, (*_shards(self.shared.parent), *_shards(self.disk.parent))), default=0)
        name = f"shards.{number}"
        if not disk:
            with contextlib.suppress(OSError, ElasticError):
                private_files.private_dir(self._root)
                private_files.private_dir(self.shared.parent)
                return private_files.private_dir(self.shared.parent / name)
        private_files.private_dir(self.disk.parent)
        return private_files.private_dir(self.disk.parent / name)

    def save_shards(self, folder: Path, *content: bytes | memoryview, durable: bool = False) -> None:
        """Make `folder`, which all writers have finished, the newest commit; `durable`: on disk when this returns."""
        for file in folder.iterdir():
            with file.open("rb") as written:
                os.fchmod(written.fileno(), 0o600)
                os.fsync(written.fileno())  # nothing in shared memory; `durable` is about the copy on disk
        private_files.write_private(folder / self.shared.name, *content, sync=True)
        for older in _shards(folder.parent):
            if older != folder:
                shutil.rmtree(older, ignore_errors=True)
        if folder.parent != self.shared.parent:
            self.drop_from_memory()
        elif durable:
            self.to_disk()

    def load_shards(self) -> tuple[bytes, Path] | None:
        """Return the newest commit with a folder of shards, and that folder; None before the first."""
        folder = self._complete(*([self.shared.parent] if self._is_ours() else []), self.disk.parent)
        return None if folder is None else ((folder / self.shared.name).read_bytes(), folder)

    def _complete(self, *parents: Path) -> Path | None:
        """Return the newest folder of shards that contains its commit."""
        found = [folder for parent in parents for folder in _shards(parent) if (folder / self.shared.name).exists()]
        return max(found, key=_number, default=None)

    def _shards_to_disk(self) -> bool:
        while (folder := self._complete(self.shared.parent)) is not None:
            if folder.name in {on_disk.name for on_disk in _shards(self.disk.parent)}:
                return False
            try:
                self._copy_to_disk(folder)
            except FileNotFoundError:
                continue  # a newer commit has replaced it
            return True
        return False

    def _copy_to_disk(self, folder: Path) -> None:
        private_files.private_dir(self.disk.parent)
        with tempfile.TemporaryDirectory(prefix=".copy-", dir=self.disk.parent) as name:
            copy = Path(name) / folder.name
            copy.mkdir(mode=0o700)
            for file in folder.iterdir():
                shutil.copy(file, copy)
                with (copy / file.name).open("rb") as copied:
                    os.fsync(copied.fileno())
            copy.rename(self.disk.parent / folder.name)
        for older in _shards(self.disk.parent):
            if _number(older) < _number(folder):
                shutil.rmtree(older, ignore_errors=True)

    def release(self, *, keep: bool) -> None:
        """Free the shared memory at the end of an attempt; with `keep` only once the commit is on disk."""
        if keep:
            try:
                self.to_disk()
            except OSError:
                return
        else:
            for file in self.disk.parent.glob("training.*"):
                file.unlink(missing_ok=True)
        self.drop_from_memory()

    def drop_from_memory(self) -> None:
        """Free the shared memory."""
        shutil.rmtree(self.shared.parent, ignore_errors=True)

    def _write_to_disk(self, *content: bytes | memoryview) -> None:
        self.disk.parent.mkdir(mode=0o700, exist_ok=True)
        private_files.write_private(self.disk, *content, sync=True)


def _mapped(path: Path) -> memoryview | None:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return None


def _shards(parent: Path) -> list[Path]:
    return list(parent.glob("shards.*"))


def _number(folder: Path) -> int:
    return int(folder.suffix[1:])
