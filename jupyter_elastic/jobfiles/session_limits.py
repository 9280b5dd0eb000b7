"""What one user's sessions may take on a shared pool: how many at a time, and how much memory while they are parked.

The daemon says it to the user's agent with each renewal of the leases, and the agent writes it down beside the
sessions' folders, for whoever makes a session and for the parked workers, which judge for themselves as they do when
memory is short. All of these run as the user: like the number of warm parents it keeps people from harm by mistake. Who
means harm is stopped by the machine's own limits of users.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil
from msgspec import Struct

from jupyter_elastic.jobfiles.sessions import Session, SessionFolder
from jupyter_elastic.platform.private_files import read_json, write_json

FILE = "session-limits.json"
BUSY = 0.1
"""The part of a processor that a parked worker may use with all that it has started."""


class Limits(Struct, frozen=True, kw_only=True):
    """Those of this user on this pool."""

    sessions: int
    memory: int
    """Bytes that the workers of all parked sessions may have together; what several share is divided among them."""


def write(runtime: Path, most: int, parked_mb: int) -> None:
    """Write them down, unless they stand there; OSError when that fails. 0 MB: a quarter of this machine's memory."""
    memory = parked_mb * 1_000_000 or psutil.virtual_memory().total // 4
    limits = Limits(sessions=most, memory=memory)
    if read(runtime) != limits:
        write_json(runtime / FILE, limits)


def read(runtime: Path) -> Limits | None:
    """Those of the pool with this runtime folder; None on a personal pool."""
    return read_json(runtime / FILE, Limits)


def too_many(folder: SessionFolder) -> str:
    """Why this user can't begin the session of this folder, and what to do; empty when he can."""
    limits = read(folder.path.parent.parent)
    if limits is None:
        return ""
    names = [name for name, _ in _living(folder.path.parent) if name != folder.name]
    if len(names) < limits.sessions:
        return ""
    return (
        f"you may have {limits.sessions} session{'' if limits.sessions == 1 else 's'} at a time on this pool, and have "
        f"{', '.join(names)}: end one (%elastic end {names[0]}), or ask the pool's administrator for more"
    )


def too_large(folder: SessionFolder) -> str:
    """Why this parked session ends now: the parked ones have too much memory, and it is idle longest. Else empty."""
    limits = read(folder.path.parent.parent)
    if limits is None:
        return ""
    idle: dict[str, float] = {}
    memory = 0
    for name, session in _living(folder.path.parent):
        other = SessionFolder(name, folder.path.parent)
        members = other.members(session)
        if members and all(member.idle_since for member in members) and other.ended() is None:
            idle[name] = max(member.idle_since for member in members)
            memory += sum(memory_of(member.pid) for member in members)
    if memory <= limits.memory or min(idle, key=idle.__getitem__, default="") != folder.name:
        return ""
    return (
        f"your parked sessions had {memory / 1e9:.1f} GB of memory, of {limits.memory / 1e9:.1f} that you may have on "
        "this pool, and of them it was idle longest"
    )


def _living(root: Path) -> list[tuple[str, Session]]:
    found = [SessionFolder(path.name, root) for path in sorted(root.iterdir())] if root.is_dir() else []
    known = [(folder, folder.read()) for folder in found]
    return [(folder.name, session) for folder, session in known if session is not None and folder.members(session)]


def memory_of(pid: int) -> int:
    """Bytes that a process has in memory; what several share is divided among them. 0 of one that is gone."""
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_full_info().pss)
    return 0


def _used_s() -> float:
    """Processor time of this process and of all that it has started and that lives."""
    own = psutil.Process()
    used = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            used += times.user + times.system
    return used


class Watch:
    """Looks whether a parked worker of a shared pool may stay."""

    def __init__(self) -> None:
        self._used_s, self._at = _used_s(), time.monotonic()

    def why(self, folder: SessionFolder, over_s: float) -> str:
        """Why it ends now: for its memory, or for what it computes, looked at in so many seconds; empty: it stays."""
        return too_large(folder) or self._busy(over_s)

    def _busy(self, over_s: float) -> str:
        passed = time.monotonic() - self._at
        if passed < over_s:
            return ""
        used_s = _used_s()
        part = max(used_s - self._used_s, 0.0) / passed
        self._used_s, self._at = used_s, self._at + passed
        if part <= BUSY:
            return ""
        return (
            f"what a cell had left running used {part:.1f} processors between cells, and on a shared pool only cells "
            "hold slots: let threads and processes end with their cell"
        )
