"""Packs the folder that travels with a cell to hosts without it (`--with`): one tar, identified by its SHA-256.

Both ends check its content: files, folders, and links that stay inside. Knows files; must not know sockets.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from jupyter_elastic.platform import paths
from jupyter_elastic.platform.private_files import private_dir
from jupyter_elastic.types.errors import BadRequest, EngineError

LIMIT = 100 * 1024**2
"""Maximum bytes of a tar."""
MAX_FILES = 10_000
"""Maximum number of files, folders and links in a tar."""
LEFT_OUT = frozenset({
    ".git", ".hg", ".svn", "__pycache__", ".ipynb_checkpoints", ".venv", "node_modules", ".mypy_cache", ".pytest_cache",
    ".ruff_cache",
})  # fmt: skip
"""Names, at any depth, that do not travel; `.pyc` files do not either."""
KEPT_S, KEPT_BYTES = 86_400.0, 1024**3
"""Seconds that a host keeps a tar after its last use, and maximum bytes of all kept tars."""
_HEADER = 1024


class PackedFolder(Struct, frozen=True):
    """A folder as one tar; equal folders give equal bytes."""

    data: bytes
    files: int
    left_out: tuple[str, ...]
    """Names in the folder that do not travel."""

    @property
    def digest(self) -> str:
        """SHA-256 of the tar."""
        return hashlib.sha256(self.data).hexdigest()


def pack(folder: Path) -> PackedFolder:
    """Pack the folder. BadRequest, with advice, when it is too large or contains what can't travel."""
    left_out: set[str] = set()
    buffer, count, files, size = io.BytesIO(), 0, 0, 0
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in _walk(folder, left_out):
            info, data = tarfile.TarInfo(str(path.relative_to(folder))), b""
            try:
                found = path.lstat()
                info.mode = 0o700 if found.st_mode & stat.S_IXUSR else 0o600
                size += found.st_size + _HEADER
                count += 1
                if size > LIMIT or count > MAX_FILES:
                    raise _too_large(folder)
                if stat.S_ISLNK(found.st_mode):
                    info.type, info.linkname = tarfile.SYMTYPE, _target(path, folder)
                elif stat.S_ISDIR(found.st_mode):
                    info.type = tarfile.DIRTYPE
                elif stat.S_ISREG(found.st_mode):
                    data, files = path.read_bytes(), files + 1
                else:
                    raise BadRequest(f"--with {folder}: {path} is neither a file nor a folder, and can't travel")
            except OSError as problem:
                raise BadRequest(f"--with {folder}: {path} can't be read: {problem.strerror}") from problem
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    if buffer.tell() > LIMIT:  # a file has grown meanwhile
        raise _too_large(folder)
    return PackedFolder(buffer.getvalue(), files, tuple(sorted(left_out)))


def _walk(folder: Path, left_out: set[str]) -> Iterator[Path]:
    """Yield the paths that travel, each folder before its content."""

    def failed(problem: OSError) -> None:
        raise BadRequest(f"--with {folder}: {problem.filename} can't be read: {problem.strerror}")

    for where, folders, files in os.walk(folder, onerror=failed):
        left_out |= LEFT_OUT & {*folders, *files}
        folders[:] = sorted(set(folders) - LEFT_OUT)
        for name in sorted([*folders, *(set(files) - LEFT_OUT)]):
            if not name.endswith(".pyc"):
                yield Path(where, name)


def _target(link: Path, folder: Path) -> str:
    """Return a link's target relative to the link's folder."""
    target, top = os.path.realpath(link), os.path.realpath(folder)
    if not Path(target).is_relative_to(top):
        raise BadRequest(
            f"--with {folder}: the link {link} leads out of the folder, to {target}, and would lead nowhere on another "
            "host; put a copy in its place, or name another folder"
        )
    return os.path.relpath(target, os.path.realpath(link.parent))


def _too_large(folder: Path) -> BadRequest:
    return BadRequest(
        f"--with {folder}: it has more than {LIMIT >> 20} MiB or {MAX_FILES:,} files, which every host would get; name "
        "a smaller folder, and let the cell read its data from where each host has it. Nothing was queued."
    )


def unpack(file: Path, target: Path) -> None:
    """Unpack a tar into a new folder. EngineError, with nothing written, if it has content that `pack` never makes."""
    try:
        with tarfile.open(file, mode="r:") as tar:
            members = tar.getmembers()
            _check(members)
            target.mkdir(mode=0o700)
            safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4
            tar.extractall(target, sorted(members, key=lambda member: member.issym()), **safe)  # noqa: S202
    except tarfile.TarError as problem:
        raise EngineError(f"the copy of the notebook's folder is no tar: {problem}") from problem


def _check(members: list[tarfile.TarInfo]) -> None:
    links = {PurePosixPath(member.name) for member in members if member.issym()}
    for member in members:
        name = PurePosixPath(member.name)
        inside = not name.is_absolute() and ".." not in name.parts and not links & {*name.parents}
        if member.issym():
            linked = os.path.normpath(name.parent / member.linkname)
            inside = inside and not linked.startswith(("/", "..")) and not member.linkname.startswith("/")
        if not inside or not (member.isreg() or member.isdir() or member.issym()):
            raise EngineError(f"the copy of the notebook's folder has what does not belong there: {member.name!r}")
    if len(members) > MAX_FILES or sum(member.size for member in members) > LIMIT:
        raise EngineError("the copy of the notebook's folder is over the limit")


def kept(digest: str) -> Path | None:
    """Return the tar with this digest if this host has it; mark it as used now."""
    path = _place(digest)
    try:
        os.utime(path)
    except OSError:
        return None
    return path


def keep(part: Path, digest: str) -> Path:
    """Keep a received tar for later jobs. EngineError when its digest is not the announced one."""
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise EngineError("the copy of the notebook's folder has not arrived as it was sent")
    path = _place(digest)
    made = path.with_suffix(f".{os.getpid()}")
    with part.open("rb") as file, made.open("xb") as new:
        os.fchmod(new.fileno(), 0o600)
        shutil.copyfileobj(file, new)
    made.replace(path)
    part.unlink()
    _sweep(path)
    return path


def _place(digest: str) -> Path:
    return private_dir(paths.state_dir() / "folders") / f"{digest}.tar"


def _sweep(used: Path) -> None:
    """Remove the tars that were not used for long, and the oldest beyond the maximum size."""
    total, now = 0, time.time()
    infos = {}
    for path in used.parent.iterdir():
        with contextlib.suppress(OSError):
            infos[path] = path.stat()
    for path, info in sorted(infos.items(), key=lambda item: -item[1].st_mtime):
        total += info.st_size
        if path != used and (now - info.st_mtime > KEPT_S or total > KEPT_BYTES):
            path.unlink(missing_ok=True)
