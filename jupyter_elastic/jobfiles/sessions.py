"""A session's folder: what its workers, which keep their variables from cell to cell, are known by.

It lies beside the pool's sockets and not in a job's folder, for it outlives jobs and ends with the machine: processes
do too. The driver of the session's first cell makes it, each worker writes its own pid there and listens there between
cells, kernel and terminal read it. A file is whole or absent.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import time
from pathlib import Path

from msgspec import Struct

from jupyter_elastic.platform import paths, processes
from jupyter_elastic.platform.private_files import private_dir, read_json, write_json
from jupyter_elastic.types import SlotId

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
"""What a session may be called: it is a part of the path of a socket, which is short."""
IDLE_S = 3600.0
"""So long the workers stay when no cell comes, unless somebody asks for another time."""
PIN_S = 600.0
"""So long slots are kept whose devices a session's memory can't leave, unless somebody asks for another time."""
LEAST_FREE = 0.05
"""While a smaller share of the machine's memory is to be had, sessions that are idle end."""
MOST_NAMES = 10_000
"""Of a session's variables so many are told to the notebook."""
END_S = 7.0
"""How long they may take to end before they are killed; longer than `worker.leaving` gives their objects."""
_RECORD, _ENDED, _NAMES, _GROUP = "session.json", "ended.json", "names.json", "group.json"


class SessionRequest(Struct, frozen=True, kw_only=True):
    """Which session a cell is for, in its payload."""

    name: str
    respawn: bool = False
    """Make it anew if its workers are gone."""
    idle_s: float = IDLE_S
    pin_s: float = PIN_S
    """Where its memory can't leave the slots' devices they are kept so long; 0: the session ends then."""
    outlive: bool = False
    """Its workers stay when the kernel is gone."""
    replaces: bool = False
    """What the cell brings along replaces what is there; else only what the session lacks is taken."""
    least_free: float = LEAST_FREE
    ranks: tuple[int, ...] = ()
    """Those that run the cell and take what it brings along; empty: all."""
    reads: tuple[str, ...] = ()
    """Names that the cell's text reads and does not set before."""
    reloads: bool = False
    """Modules that were edited are loaded again before the cell."""

    def runs_on(self, rank: int) -> bool:
        """Whether this rank runs the cell."""
        return not self.ranks or rank in self.ranks


class Session(Struct, frozen=True, kw_only=True):
    """A session as it was made. It stays so until its end, but for its workers where they may be more or fewer."""

    name: str
    size: int
    low: int = 0
    high: int = 0
    """Its range, in which a cell with an elastic loop may change its size; equal: the size stays."""
    seats: tuple[int, ...] = ()
    """By rank the numbers under which the workers are known here; empty: each has its rank's."""
    engine: str
    python: str
    job: int
    """Of the cell that made it."""
    made_at: float
    kernel: tuple[int, float] | None = None
    """The process that it ends with, by pid and start time; None: with none."""
    idle_s: float = IDLE_S
    pin_s: float = PIN_S
    least_free: float = LEAST_FREE
    """It may end, the longest idle first, while less than this share of the machine's memory is to be had."""

    @property
    def elastic(self) -> bool:
        """Whether its size can change."""
        return self.low < self.high

    @property
    def range(self) -> tuple[int, int]:
        """The least and the most workers that it can have."""
        return (self.low, self.high) if self.elastic else (self.size, self.size)

    @property
    def places(self) -> tuple[int, ...]:
        """The seat of each rank."""
        return self.seats or tuple(range(self.size))


class Member(Struct, frozen=True, kw_only=True):
    """One of its workers, as it writes of itself."""

    pid: int
    start_time: float
    idle_since: float = 0.0
    """Seconds since the epoch; 0 while a cell runs in it."""
    slot: SlotId = ""
    """On whose device it had what is parked; empty: on none."""

    @property
    def known(self) -> processes.ProcessId:
        """(pid, start time)."""
        return (self.pid, self.start_time)


class Ended(Struct, frozen=True, kw_only=True):
    """Why its workers are gone, as the first of them has said."""

    why: str
    at: float


class SessionFolder:
    """The folder of the session of this name, whether there is one or not."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = name
        self.path = (root or sessions_dir()) / name

    def read(self) -> Session | None:
        """The session; None when there is none."""
        return read_json(self.path / _RECORD, Session)

    def make(self, session: Session) -> None:
        """Write down a session that is made now; nothing is left of one before it. OSError when it can't be written."""
        self.remove()
        private_dir(self.path)
        write_json(self.path / _RECORD, session)

    def rewrite(self, session: Session) -> None:
        """Write down that its workers are others now; OSError when it can't be written."""
        write_json(self.path / _RECORD, session)

    def remove(self) -> None:
        """Forget the session."""
        shutil.rmtree(self.path, ignore_errors=True)

    def socket(self, seat: int) -> Path:
        """Where this worker listens between cells."""
        return self.path / f"{seat}.sock"

    @property
    def driver_socket(self) -> Path:
        """Where the driver of its last cell listens for the next one, if it stays."""
        return self.path / "driver.sock"

    def write_member(self, seat: int, member: Member) -> None:
        """Say which process this worker is; a full disk is no error."""
        with contextlib.suppress(OSError):
            write_json(self.path / f"worker.{seat}.json", member)

    def member(self, seat: int) -> Member | None:
        """The process of a worker, living or not; None before it came up."""
        return read_json(self.path / f"worker.{seat}.json", Member)

    def lives(self, seat: int) -> Member | None:
        """The process of a worker, if it lives."""
        member = self.member(seat)
        return member if member is not None and processes.alive(*member.known) else None

    def members(self, session: Session) -> list[Member]:
        """Those of its workers that live, by rank."""
        return [member for seat in session.places if (member := self.lives(seat)) is not None]

    def slots(self) -> tuple[SlotId, ...]:
        """By rank the slots to whose devices its workers go back; empty where they have nothing on devices."""
        session = self.read()
        found = [member.slot for member in self.members(session)] if session is not None else []
        return tuple(found) if all(found) else ()

    def over(self, session: Session) -> bool:
        """Whether it has ended with its kernel, so that a cell which names it means a new one."""
        return session.kernel is not None and not processes.alive(*session.kernel)

    def end(self, why: str) -> None:
        """Note why its workers are gone, unless that is known already; a full disk is no error."""
        if self.ended() is None:
            with contextlib.suppress(OSError):
                write_json(self.path / _ENDED, Ended(why=why, at=time.time()))

    def ended(self) -> Ended | None:
        """Why its workers are gone, as far as one has said so."""
        return read_json(self.path / _ENDED, Ended)

    def write_names(self, names: list[str]) -> None:
        """Note what variables it has; a full disk is no error."""
        with contextlib.suppress(OSError):
            write_json(self.path / _NAMES, names[:MOST_NAMES])

    def names(self) -> frozenset[str]:
        """The variables that rank 0 had after the last cell."""
        return frozenset(read_json(self.path / _NAMES, list[str]) or ())

    def write_group(self, group: str) -> None:
        """Note the group in which it was when a cell ended."""
        with contextlib.suppress(OSError):
            write_json(self.path / _GROUP, group)

    def group(self) -> str:
        """That group, as the engine's worker half calls it; empty: none."""
        return read_json(self.path / _GROUP, str) or ""


def sessions_dir() -> Path:
    """The folder of the sessions' folders of this pool and user."""
    return private_dir(paths.runtime_dir() / "sessions")


def listed(runtime: Path | None = None) -> list[SessionFolder]:
    """All sessions that are written down, by name; of another pool, that of its runtime folder."""
    root = sessions_dir() if runtime is None else runtime / "sessions"
    found = sorted(root.iterdir()) if root.is_dir() else []
    return [SessionFolder(path.name, root) for path in found if NAME.fullmatch(path.name)]


def idle_longest(found: list[SessionFolder], free: float) -> str:
    """The name of the session that is idle longest, of those that end while this share of memory is free; or empty."""
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
    """The sentence that says why a session can't go on, and what to do."""
    ended = folder.ended()
    why = f": {ended.why}" if ended is not None else ""
    return (
        f"the session {folder.name!r} has lost its variables{why}. Give `--respawn` to begin it anew, and run the "
        "cells again that make them"
    )


def _count(sizes: tuple[int, int]) -> str:
    return str(sizes[0]) if sizes[0] == sizes[1] else f"{sizes[0]} to {sizes[1]}"


def differs(session: Session, sizes: tuple[int, int], engine: str, python: str) -> str:
    """What a session has that is not what a cell asks for, and what to do; empty when it fits.

    `sizes` are the least and the most workers.
    """
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
                f"or end it: %elastic end {name}"
            )
    return ""


def end_left(folder: SessionFolder, session: Session) -> int:
    """End the workers of a session that live; how many. Between two cells they close what their cells left open."""
    left = [member.known for member in folder.members(session)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for known in left:
            processes.send(known, number)
        until = time.monotonic() + END_S
        while processes.living(left) and time.monotonic() < until:
            time.sleep(0.01)
    return len(left)
