"""Reads and writes a session's folder, by which the workers that keep variables from cell to cell are found.

The folder lies beside the pool's sockets and not in a job's folder, for it outlives jobs and, like processes, ends with
the machine. The driver of the session's first cell makes it, each worker writes its own pid there and listens there
between cells, kernel and terminal read it. A file is whole or absent.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import time
from pathlib import Path

from msgspec import Struct, field

from jupyter_elastic.platform import paths, processes
from jupyter_elastic.platform.private_files import private_dir, read_json, write_json
from jupyter_elastic.types import SlotId

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
"""Allowed names of sessions: the name is a part of the path of a socket, which is short."""
IDLE_S = 3600.0
"""Default seconds that the workers stay when no cell comes."""
PIN_S = 600.0
"""Default seconds that slots are retained whose devices a session's memory can't leave."""
LEAST_FREE = 0.05
"""Share of the machine's memory below which, while it is free, idle sessions end."""
MAX_NAMES = 10_000
"""Maximum number of a session's variables that are reported to the notebook."""
END_S = 7.0
"""Seconds that workers have to end before they are killed; exceeds the time of `worker.leaving` for their objects."""
_RECORD, _ENDED, _NAMES, _GROUP = "session.json", "ended.json", "names.json", "group.json"


class SessionRequest(Struct, frozen=True, kw_only=True):
    """The session that a cell is for, in its payload."""

    name: str
    respawn: bool = False
    """Start the session anew if its workers are gone."""
    idle_s: float = IDLE_S
    pin_s: float = PIN_S
    """Seconds that slots are retained if the session's memory can't leave their devices; 0: the session ends then."""
    outlive: bool = False
    """True if the workers stay when the kernel is gone."""
    replaces: bool = False
    """The cell's captured names replace the session's; else only names that the session lacks are taken."""
    least_free: float = LEAST_FREE
    ranks: tuple[int, ...] = ()
    """Ranks that run the cell and take its captured names; empty: all."""
    reads: tuple[str, ...] = ()
    """Names that the cell's text reads and does not set before."""
    reloads: bool = False
    """Reload edited modules before the cell."""

    def runs_on(self, rank: int) -> bool:
        """Return whether this rank runs the cell."""
        return not self.ranks or rank in self.ranks


class Session(Struct, frozen=True, kw_only=True):
    """A session as it was made. It never changes until its end, but for its workers if their number may change."""

    name: str
    size: int
    low: int = 0
    high: int = 0
    """Range in which a cell with an elastic loop may change the size; if equal, the size stays."""
    member_ids: tuple[int, ...] = field(name="seats", default=())
    """Member ids of the workers, by rank; empty: each id is the worker's rank."""
    engine: str
    python: str
    job: int
    """Job of the cell that made the session."""
    made_at: float
    kernel: tuple[int, float] | None = None
    """Process that the session ends with, by pid and start time; None: with none."""
    idle_s: float = IDLE_S
    pin_s: float = PIN_S
    least_free: float = LEAST_FREE
    """Share of the machine's free memory below which the session may end, the longest idle first."""

    @property
    def elastic(self) -> bool:
        """True if the session's size can change."""
        return self.low < self.high

    @property
    def range(self) -> tuple[int, int]:
        """The minimum and maximum number of workers."""
        return (self.low, self.high) if self.elastic else (self.size, self.size)

    @property
    def places(self) -> tuple[int, ...]:
        """The member id of each rank."""
        return self.member_ids or tuple(range(self.size))


class SessionMember(Struct, frozen=True, kw_only=True):
    """A worker of the session, as it describes itself."""

    pid: int
    start_time: float
    idle_since: float = 0.0
    """Seconds since the epoch; 0 while a cell runs in the worker."""
    slot: SlotId = ""
    """Slot of the device whose memory is suspended; empty: none."""

    @property
    def known(self) -> processes.ProcessId:
        """(pid, start time)."""
        return (self.pid, self.start_time)


class Ended(Struct, frozen=True, kw_only=True):
    """The reason why the workers are gone, as the first of them reported it."""

    why: str
    at: float


class SessionFolder:
    """The folder of the session of this name, whether or not there is one."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = name
        self.path = (root or sessions_dir()) / name

    def read(self) -> Session | None:
        """Read the session; None when there is none."""
        return read_json(self.path / _RECORD, Session)

    def make(self, session: Session) -> None:
        """Write a new session; remove all files of an earlier one. OSError when it can't be written."""
        self.remove()
        private_dir(self.path)
        write_json(self.path / _RECORD, session)

    def rewrite(self, session: Session) -> None:
        """Write the session with its changed workers; OSError when it can't be written."""
        write_json(self.path / _RECORD, session)

    def remove(self) -> None:
        """Remove the session's folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def socket(self, member_id: int) -> Path:
        """Return the socket where this worker listens between cells."""
        return self.path / f"{member_id}.sock"

    @property
    def driver_socket(self) -> Path:
        """The socket where the driver of the last cell listens for the next one, if it stays."""
        return self.path / "driver.sock"

    def write_member(self, member_id: int, member: SessionMember) -> None:
        """Write which process this worker is; a full disk is no error."""
        with contextlib.suppress(OSError):
            write_json(self.path / f"worker.{member_id}.json", member)

    def member(self, member_id: int) -> SessionMember | None:
        """Read a worker's process, living or not; None before it came up."""
        return read_json(self.path / f"worker.{member_id}.json", SessionMember)

    def lives(self, member_id: int) -> SessionMember | None:
        """Read a worker's process, if it lives."""
        member = self.member(member_id)
        return member if member is not None and processes.alive(*member.known) else None

    def members(self, session: Session) -> list[SessionMember]:
        """Return the session's live workers, by rank."""
        return [member for member_id in session.places if (member := self.lives(member_id)) is not None]

    def slots(self) -> tuple[SlotId, ...]:
        """Return the slots, by rank, to whose devices the workers go back; empty if they have nothing on devices."""
        session = self.read()
        found = [member.slot for member in self.members(session)] if session is not None else []
        return tuple(found) if all(found) else ()

    def over(self, session: Session) -> bool:
        """Return whether the session has ended with its kernel, so that a cell which names it means a new one."""
        return session.kernel is not None and not processes.alive(*session.kernel)

    def end(self, why: str) -> None:
        """Write why the workers are gone, unless a reason is written already; a full disk is no error."""
        if self.ended() is None:
            with contextlib.suppress(OSError):
                write_json(self.path / _ENDED, Ended(why=why, at=time.time()))

    def ended(self) -> Ended | None:
        """Read why the workers are gone; None if no reason is written."""
        return read_json(self.path / _ENDED, Ended)

    def write_names(self, names: list[str]) -> None:
        """Write the names of the session's variables; a full disk is no error."""
        with contextlib.suppress(OSError):
            write_json(self.path / _NAMES, names[:MAX_NAMES])

    def names(self) -> frozenset[str]:
        """Read the names of rank 0's variables after the last cell."""
        return frozenset(read_json(self.path / _NAMES, list[str]) or ())

    def write_group(self, group: str) -> None:
        """Write the group that the session was in when a cell ended."""
        with contextlib.suppress(OSError):
            write_json(self.path / _GROUP, group)

    def group(self) -> str:
        """Read that group, as named by the engine's worker half; empty: none."""
        return read_json(self.path / _GROUP, str) or ""


def sessions_dir() -> Path:
    """Return the folder of the sessions' folders of this pool and user."""
    return private_dir(paths.runtime_dir() / "sessions")


def listed(runtime: Path | None = None) -> list[SessionFolder]:
    """Return all sessions with a folder, by name; `runtime`: of the pool with that runtime folder."""
    root = sessions_dir() if runtime is None else runtime / "sessions"
    found = sorted(root.iterdir()) if root.is_dir() else []
    return [SessionFolder(path.name, root) for path in found if NAME.fullmatch(path.name)]


def idle_longest(found: list[SessionFolder], free: float) -> str:
    """Return the name of the longest idle session among those that end with this share of memory free; or empty."""
    idle: dict[str, float] = {}
    for folder in found:
        session = folder.read()
        if session is None or session.least_free <= free or folder.ended() is not None:
            continue
        since = [member.idle_since for member in folder.members(session)]
        if since and all(since):
            idle[folder.name] = max(since)
    return min(idle, key=idle.__getitem__, default="")


def gone(folder: SessionFolder) -> str:
    """Return the sentence that says why a session can't go on, and what to do."""
    ended = folder.ended()
    why = f": {ended.why}" if ended is not None else ""
    return (
        f"the session {folder.name!r} has lost its variables{why}. Give `--respawn` to begin it anew, and run the "
        "cells again that make them"
    )


def _count(sizes: tuple[int, int]) -> str:
    return str(sizes[0]) if sizes[0] == sizes[1] else f"{sizes[0]} to {sizes[1]}"


def differs(session: Session, sizes: tuple[int, int], engine: str, python: str) -> str:
    """Return how a session differs from the request (`sizes`: least and most workers), and what to do; or empty."""
    name = session.name
    for what, has, asked in (
        ("workers", _count(session.range), _count(sizes)),
        ("the engine", session.engine, engine),
        ("the interpreter", session.python, python),
    ):
        if has != asked:
            text = f"{has} {what}, not {asked}" if what == "workers" else f"{what} {has}, not {asked}"
            return (
                f"the session {name!r} has {text}, and keeps it to its end. Leave the option out, take another name, "
                f"or end it: %elastic session end {name}"
            )
    return ""


def end_left(folder: SessionFolder, session: Session) -> int:
    """End the live workers of a session; return their number. Between cells, workers close what cells left open."""
    left = [member.known for member in folder.members(session)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for known in left:
            processes.send(known, number)
        until = time.monotonic() + END_S
        while processes.living(left) and time.monotonic() < until:
            time.sleep(0.01)
    return len(left)
