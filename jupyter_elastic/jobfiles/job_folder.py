"""The folder of a job, whose files another user may have written: who shows, reads or marks a job opens them here.

Somebody may have put anything there: links, FIFOs, devices, files of many terabytes, and may exchange them at any
moment. So each file is opened from the folder downwards without following a link and without waiting, and what was
opened is looked at: a regular file, of the job's owner, in folders of his. Only what belongs to this process's own user
is written, or read whole. Knows no file's content.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from jupyter_elastic.types import JobInfo
from jupyter_elastic.types.errors import NotAllowed
from jupyter_elastic.types.texts import visible

NO_FOLDER = "/dev/null/another-user's"
"""Stands for the folder of somebody else's job where the daemon does not say it: nothing can lie there."""
MOST = 4 * 1024**2
"""Bytes of another user's file that are read at once."""
MOST_SENT = 64 * 1024**2
"""Bytes of another user's file that are shown in pieces."""
MOST_NAMES = 10_000
"""Entries of another user's folder that are looked at."""
PIECE = 256 * 1024
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _SAFE

_T = TypeVar("_T")


class FileRefused(NotAllowed, PermissionError):
    """A file that this user can't or shall not open; the message says whose it is, and whom to ask."""


class JobFolder:
    """A job's folder. Names are those of folders below it and at last of a file: `open("rank.0", "stdout")`.

    Args:
        path: Where it is.
        uid: Its owner, where that is another user than this process's.
        owner: What that user is called.
        job: The job's number, for messages.
    """

    def __init__(self, path: str | Path, uid: int | None = None, *, owner: str = "", job: int | None = None) -> None:
        self.path = Path(path or NO_FOLDER)
        self.own = uid is None
        self._uid = os.getuid() if uid is None else uid
        self._owner = owner
        self._job = f"the job in {path}" if job is None else f"job {job}"

    @classmethod
    def of(cls, info: JobInfo) -> Self:
        """That of this job."""
        return cls(info.spec.folder, -1 if info.private else info.uid, owner=info.owner, job=info.job)

    def check_own(self, what: str) -> None:
        """NotAllowed unless it is this user's own: `what` of it others may not do."""
        if not self.own:
            raise NotAllowed(f"{self._job} is {self._owner}'s: only {self._owner} may {what}")

    def open(self, *names: str) -> FileIO:
        """Open a file for reading. FileNotFoundError; FileRefused where it is no regular file of the job's owner."""
        with self._errors(names):
            return FileIO(self._open(names, os.O_RDONLY), "r")

    def read(self, *names: str) -> bytes:
        """The content, of another user's file the last `MOST` bytes. The errors of `open`."""
        with self.open(*names) as file:
            if self.own:
                return file.readall()
            file.seek(max(0, os.fstat(file.fileno()).st_size - MOST))
            return file.read(MOST)

    def json(self, kind: type[_T], *names: str) -> _T | None:
        """A struct; None where there is none that can be read."""
        try:
            return msgspec.json.decode(self.read(*names), type=kind)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def names(self, *names: str) -> list[str]:
        """What lies in the folder; empty where there is none. FileRefused."""
        try:
            with self._errors(names), self._entered(names) as folder, os.scandir(folder) as entries:
                found = (entry.name for entry in entries)
                return sorted(itertools.islice(found, None if self.own else MOST_NAMES))
        except FileNotFoundError:
            return []

    def change(self, *names: str) -> FileIO:
        """Open a file of this user's own job for reading and writing; it is made where it is not there. NotAllowed."""
        self.check_own(f"change its {'/'.join(names)}")
        with self._errors(names):
            return FileIO(self._open(names, os.O_RDWR | os.O_CREAT), "r+")

    def write(self, data: bytes, *names: str) -> None:
        """Replace the content of a small file of this user's own job. NotAllowed, OSError."""
        with self.change(*names) as file:
            file.truncate(0)
            file.write(data)

    def shown(self, file: FileIO) -> Iterator[bytes]:
        """A text from where the file stands to its present end, in pieces as a terminal may show them."""
        left = os.fstat(file.fileno()).st_size - file.tell()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        left = left if self.own else min(left, MOST_SENT)
        while left > 0 and (data := file.read(min(left, PIECE))):
            left -= len(data)
            yield data if self.own else self.text(decoder.decode(data, final=left <= 0)).encode()

    def text(self, text: str) -> str:
        """Another user's text with its control characters written out; one's own as it is."""
        return text if self.own else visible(text, lines=True)

    def _open(self, names: tuple[str, ...], flags: int) -> int:
        *folders, name = names
        with self._entered(folders) as folder:
            return self._checked(os.open(name, flags | _SAFE, 0o600, dir_fd=folder), stat.S_ISREG, "a regular file")

    @contextlib.contextmanager
    def _entered(self, names: tuple[str, ...] | list[str]) -> Iterator[int]:
        """A descriptor of the folder itself, or of one below it."""
        folder = self._checked(os.open(self.path, _FOLDER), stat.S_ISDIR, "a folder")
        try:
            for name in names:
                below = self._checked(os.open(name, _FOLDER, dir_fd=folder), stat.S_ISDIR, "a folder")
                os.close(folder)
                folder = below
            yield folder
        finally:
            os.close(folder)

    def _checked(self, opened: int, is_kind: object, what: str) -> int:
        """The descriptor, if it is one of the right kind and owner; else it is closed."""
        info = os.fstat(opened)
        if not is_kind(info.st_mode) or info.st_uid != self._uid:  # type: ignore[operator]
            os.close(opened)
            raise PermissionError(0, f"not {what} of {'yours' if self.own else self._owner}")
        return opened

    @contextlib.contextmanager
    def _errors(self, names: tuple[str, ...]) -> Iterator[None]:
        """What the system, or a check, says of it, in words for people."""
        try:
            if any("/" in name or name == ".." for name in names):
                raise PermissionError(0, "not a name")
            yield
        except FileNotFoundError:
            raise
        except OSError as problem:
            what = "/".join(names) or "its folder"
            why = "a link" if problem.errno == errno.ELOOP else problem.strerror
            if self.own:
                raise FileRefused(f"{what} of {self._job} can't be used: {why}") from None
            said = f"{self._job} is {self._owner}'s: its files are {self._owner}'s alone"
            if self.path != Path(NO_FOLDER):
                said += f". {what} can't be read here ({why}); ask {self._owner} for what you need"
            raise FileRefused(said) from None
