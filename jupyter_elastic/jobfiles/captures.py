"""Stores the names that cells have captured: once on disk, read by workers, removed some time after the job.

Small captures are part of the payload. A large one is a file of its own in the job's folder; equal ones are one file
with several names (hard links), and each has a name in `.captures` beside the jobs' folders. Knows files; must not know
sockets, and unpickles nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from jupyter_elastic.platform import private_files

PAYLOAD, NAMES = "payload.msgpack", "names.pickle"
FOLDER = "folder.tar"
"""Tar of the folder that hosts get a copy of: see `folder_copy`."""
FILES = (PAYLOAD, NAMES, FOLDER)
LARGE = 256 * 1024
"""Bytes of captured names from which the names are a file of their own."""
STORE = ".captures"
KEPT_S = 86_400.0
"""Seconds that captures stay after their job's end."""
MAX_BYTES = 4 * 1000**3
"""Maximum bytes of the captures of ended jobs; beyond that the oldest are removed before `KEPT_S`."""
LEAST_S = 600.0
"""Minimum seconds that captures stay: their job may be on its way to the daemon."""
_SAMPLES, _SAMPLE = 64, 4096
_CHUNK = 1024 * 1024


class StoredCapture(NamedTuple):
    """The captures of an ended job."""

    folder: Path
    files: dict[int, int]
    """Inode -> bytes, so that a file of several jobs counts once."""
    since: float
    """Time of the job's end, in seconds since the epoch."""


def store(data: bytes, folder: Path, name: str = NAMES) -> None:
    """Write captured names into a job's folder, or link a job's equal file. OSError when the disk is full."""
    path, twin = folder / name, folder.parent / STORE / _fingerprint(data)
    with contextlib.suppress(OSError):  # another one, none yet, or a disk without hard links
        if _holds(twin, data):
            os.link(twin, path)
            return
    private_files.write_private(path, data)
    with contextlib.suppress(OSError):
        twin.parent.mkdir(mode=0o700, exist_ok=True)
        os.link(path, twin)


def _fingerprint(data: bytes) -> str:
    """Return a name by which equal bytes are found; bytes that differ in a few places may share it.

    The digest covers samples, because a full digest takes longer than writing the bytes; `_holds` compares all.
    """
    step = max(_SAMPLE, len(data) // _SAMPLES)
    digest = hashlib.sha256()
    for start in range(0, len(data), step):
        digest.update(data[start : start + _SAMPLE])
    return f"{len(data)}-{digest.hexdigest()[:32]}"


def _holds(path: Path, data: bytes) -> bool:
    with path.open("rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size != len(data):
            return False
        return all(file.read(_CHUNK) == data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK))


def stored(jobs: Path, unfinished: Iterable[str] = ()) -> list[StoredCapture]:
    """Return the captures below `jobs` that are in none of the unfinished jobs' folders."""
    found = []
    busy = {Path(folder).name for folder in unfinished}
    for folder in jobs.iterdir() if jobs.is_dir() else ():
        if folder.name == STORE or folder.name in busy:
            continue
        with contextlib.suppress(OSError):
            if files := _files(folder):
                found.append(StoredCapture(folder, files, _ended_at(folder)))
    return found


def _files(folder: Path) -> dict[int, int]:
    infos = [path.stat() for name in FILES if (path := folder / name).exists()]
    return {info.st_ino: info.st_size for info in infos}


def _ended_at(folder: Path) -> float:
    """Return the time of the last attempt's end; of a job without one, the time of the folder's last change."""
    ends = [path.stat().st_mtime for path in folder.glob("attempt.*/exit.json")]
    return max(ends, default=folder.stat().st_mtime)


def surplus(captures: Sequence[StoredCapture], now: float) -> list[StoredCapture]:
    """Return the captures to remove: those a day old, and the oldest beyond `MAX_BYTES` bytes."""
    files: dict[int, int] = {}
    remove = []
    for capture in sorted(captures, key=lambda capture: -capture.since):
        files |= capture.files
        age_s = now - capture.since
        if age_s > KEPT_S or (age_s > LEAST_S and sum(files.values()) > MAX_BYTES):
            remove.append(capture)
    return remove


def sweep(jobs: Path, unfinished: Iterable[str], clock: Callable[[], float] = time.time) -> int:
    """Remove the surplus captures of ended jobs; return their number."""
    gone = surplus(stored(jobs, unfinished), clock())
    for capture in gone:
        for name in FILES:
            (capture.folder / name).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        for twin in (jobs / STORE).iterdir():
            if twin.stat().st_nlink == 1:
                twin.unlink(missing_ok=True)
    return len(gone)


def on_disk(jobs: Path) -> tuple[int, int]:
    """Return the number of jobs with captures here, and the bytes of all captures."""
    everything = stored(jobs)
    files = {inode: size for one in everything for inode, size in one.files.items()}
    return len(everything), sum(files.values())
