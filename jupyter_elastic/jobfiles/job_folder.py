"""Opens files in a job's folder safely, as another user may have written them.

Another user may have put anything there: links, FIFOs, devices, files of many terabytes, and may exchange them at any
moment. So each file is opened from the folder downwards without following a link and without waiting, and the opened
file is checked: a regular file, of the job's owner, in folders of the owner. Only the files of this process's own user
are written, or read whole. Knows no file's content.
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
"""Path of another user's job's folder that the daemon does not disclose: no file can lie there."""
MAX_READ = 4 * 1024**2
"""Maximum bytes of another user's file that are read at once."""
MAX_SENT = 64 * 1024**2
"""Maximum bytes of another user's file that are shown in pieces."""
MAX_NAMES = 10_000
"""Maximum number of entries of another user's folder that are read."""
PIECE = 256 * 1024
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _SAFE

_T = TypeVar("_T")


class FileRefused(NotAllowed, PermissionError):
    """Raised for a file that this user can't or must not open; the message names its owner, and whom to ask."""


class JobFolder:
    """A job's folder. Names are those of subfolders and lastly of a file: `open("rank.0", "stdout")`.

    Args:
        path: The folder's path.
        uid: The owner's user id, if it is not this process's user.
        owner: The owner's name.
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
        """Return the folder of this job."""
        return cls(info.spec.folder, -1 if info.private else info.uid, owner=info.owner, job=info.job)

    def check_own(self, what: str) -> None:
        """Raise NotAllowed unless the job is this user's own: others may not do `what` with it."""
        if not self.own:
            raise NotAllowed(f"{self._job} is {self._owner}'s: only {self._owner} may {what}")

    def open(self, *names: str) -> FileIO:
        """Open a file for reading. FileNotFoundError; FileRefused if it is no regular file of the job's owner."""
        with self._errors(names):
            return FileIO(self._open(names, os.O_RDONLY), "r")

    def read(self, *names: str) -> bytes:
        """Read a file's content, of another user's file the last `MAX_READ` bytes. Raises the errors of `open`."""
        with self.open(*names) as file:
            if self.own:
                return file.readall()
            file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_READ))
            return file.read(MAX_READ)

    def json(self, kind: type[_T], *names: str) -> _T | None:
        """Read a struct; None if there is none that can be read."""
        try:
            return msgspec.json.decode(self.read(*names), type=kind)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def names(self, *names: str) -> list[str]:
        """Return the names of the folder's entries; empty if there is no folder. FileRefused."""
        try:
            with self._errors(names), self._entered(names) as folder, os.scandir(folder) as entries:
                found = (entry.name for entry in entries)
                return sorted(itertools.islice(found, None if self.own else MAX_NAMES))
        except FileNotFoundError:
            return []

    def change(self, *names: str) -> FileIO:
        """Open a file of this user's own job for reading and writing; create it if it is missing. NotAllowed."""
        self.check_own(f"change its {'/'.join(names)}")
        with self._errors(names):
            return FileIO(self._open(names, os.O_RDWR | os.O_CREAT), "r+")

    def write(self, data: bytes, *names: str) -> None:
        """Replace the content of a small file of this user's own job. NotAllowed, OSError."""
        with self.change(*names) as file:
            file.truncate(0)
            file.write(data)

    def shown(self, file: FileIO) -> Iterator[bytes]:
        """Yield a text from the file's position to its present end, in pieces that a terminal may show."""
        left = os.fstat(file.fileno()).st_size - file.tell()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        left = left if self.own else min(left, MAX_SENT)
        while left > 0 and (data := file.read(min(left, PIECE))):
            left -= len(data)
            yield data if self.own else self.text(decoder.decode(data, final=left <= 0)).encode()

    def text(self, text: str) -> str:
        """Return another user's text with its control characters written out; one's own unchanged."""
        return text if self.own else visible(text, lines=True)

    def _open(self, names: tuple[str, ...], flags: int) -> int:
        *folders, name = names
        with self._entered(folders) as folder:
            return self._checked(os.open(name, flags | _SAFE, 0o600, dir_fd=folder), stat.S_ISREG, "a regular file")

    @contextlib.contextmanager
    def _entered(self, names: tuple[str, ...] | list[str]) -> Iterator[int]:
        """Yield a descriptor of the folder itself, or of a subfolder."""
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
        """Return the descriptor if it has the right kind and owner; else close it and raise PermissionError."""
        info = os.fstat(opened)
        if not is_kind(info.st_mode) or info.st_uid != self._uid:  # type: ignore[operator]
            os.close(opened)
            raise PermissionError(0, f"not {what} of {'yours' if self.own else self._owner}")
        return opened

    @contextlib.contextmanager
    def _errors(self, names: tuple[str, ...]) -> Iterator[None]:
        """Turn errors of the system or of a check into errors with text for people."""
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
