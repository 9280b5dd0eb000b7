"""Enforces one user's limits on a shared pool: number of sessions, and memory while they are suspended.

The daemon sends the limits to the user's agent with each renewal of the leases. The agent writes them beside the
sessions' folders, for the makers of sessions and for the suspended workers, which check themselves as they do when
memory is short. All of these run as the user: like the number of warm parents, the limits prevent harm by mistake. The
machine's own limits of users stop intended harm.
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
"""Share of a processor that a suspended worker may use together with the processes it has started."""


class SessionLimits(Struct, frozen=True, kw_only=True):
    """The limits of this user on this pool."""

    sessions: int
    memory: int
    """Maximum bytes of all suspended sessions' workers together; each shared page is divided among its processes."""


def write(runtime: Path, most: int, parked_mb: int) -> None:
    """Write the limits if they have changed; OSError on failure. 0 MB: a quarter of this machine's memory."""
    memory = parked_mb * 1_000_000 or psutil.virtual_memory().total // 4
    limits = SessionLimits(sessions=most, memory=memory)
    if read(runtime) != limits:
        write_json(runtime / FILE, limits)


def read(runtime: Path) -> SessionLimits | None:
    """Read the limits of the pool with this runtime folder; None on a personal pool."""
    return read_json(runtime / FILE, SessionLimits)


def too_many(folder: SessionFolder) -> str:
    """Return why this user can't start this folder's session, and what to do; empty if allowed."""
    limits = read(folder.path.parent.parent)
    if limits is None:
        return ""
    names = [name for name, _ in _living(folder.path.parent) if name != folder.name]
    if len(names) < limits.sessions:
        return ""
    return (
        f"you may have {limits.sessions} session{'' if limits.sessions == 1 else 's'} at a time on this pool, and have "
        f"{', '.join(names)}: end one (%elastic session end {names[0]}), or ask the pool's administrator for more"
    )


def too_large(folder: SessionFolder) -> str:
    """Return why this suspended session ends: all have too much memory, and it is idle longest. Empty: it stays."""
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
    """Return a process's memory in bytes; shared pages are divided among their processes. 0 if it is gone."""
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_full_info().pss)
    return 0


def _used_s() -> float:
    """Return the processor time of this process and of all live processes that it has started."""
    own = psutil.Process()
    used = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            used += times.user + times.system
    return used


class IdleWatch:
    """A check whether a suspended worker of a shared pool may stay."""

    def __init__(self) -> None:
        self._used_s, self._at = _used_s(), time.monotonic()

    def why(self, folder: SessionFolder, over_s: float) -> str:
        """Return why the worker ends now: its memory, or its processor use over `over_s` seconds; empty: it stays."""
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
