"""Makes folders and files that only their owner can read or write (mode 0700 and 0600)."""

from __future__ import annotations

import os
import stat
import threading
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from jupyter_elastic.types.errors import BadRequest, NotAllowed

_T = TypeVar("_T")


def private_dir(path: Path) -> Path:
    """Create `path` with mode 0700 if it is absent; NotAllowed if it, or a link to it, belongs to another user.

    The owner of a link in `/tmp` can turn it to another folder at any time, and be taken for the daemon.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)  # a link to a folder will do
        link, info = path.lstat(), path.stat()
    except OSError as problem:
        raise BadRequest(
            f"can't use the folder {path}: {problem}; set JUPYTER_ELASTIC_DIR to one that you own"
        ) from problem
    if info.st_uid != os.getuid() or link.st_uid not in {os.getuid(), 0}:
        raise NotAllowed(
            f"{path} belongs to another user; remove it or set JUPYTER_ELASTIC_DIR to a folder of your own"
        )
    if stat.S_IMODE(info.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def is_private(path: Path) -> bool:
    """Return whether `path` is a folder (no link) of this user, closed to all others."""
    try:
        info = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077


def write_private(path: Path, *content: bytes | memoryview, sync: bool = False) -> None:
    """Write a file of mode 0600 atomically: a reader sees the old or the new one. `sync`: on disk when this returns.

    OSError when that fails, as on a full disk; no part of the new file is left then.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.unlink(missing_ok=True)
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.writelines(content)
            if sync:
                file.flush()
                os.fsync(handle)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, value: Any, *, sync: bool = False) -> None:
    """Write a struct as JSON by `write_private`."""
    write_private(path, msgspec.json.encode(value), sync=sync)


def read_json(path: Path, kind: type[_T]) -> _T | None:
    """Read a struct; None when the file is absent or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def open_private(path: Path, *, append: bool = False) -> FileIO:
    """Open a file for unbuffered writing; a new file has mode 0600."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    return FileIO(os.open(path, flags, 0o600), "w")
