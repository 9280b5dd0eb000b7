"""Finds a user's warm parents (forkservers) in a pool, and picks the surplus ones.

Each parent holds a lock in the pool's runtime folder; the lock's file names the parent and its memory, and is touched
while the parent is used. Knows those files and signals; must not know what a forkserver does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from msgspec import Struct

from jupyter_elastic.platform import private_files, processes

WARM_VARIABLE = "JUPYTER_ELASTIC_WARM"
"""Variable of the user. `0`: never fork workers from warm parents; another number: the maximum number of parents."""
MAX_PARENTS = 8
"""Default maximum number of a user's parents in a pool."""
MAX_MEMORY, PART_OF_MEMORY = 4 * 1024**3, 8
"""Maximum bytes of all parents together: the smaller of this number and this part of the machine's memory."""
WORKERS, DRIVERS = "workers", "drivers"
"""Kinds of processes that forkservers fork; part of their files' names."""


class ParentRecord(Struct, frozen=True, array_like=True):
    """The content of a parent's lock file."""

    pid: int
    start_time: float
    memory: int = 0
    """Resident bytes; 0 until the parent can fork."""


class Parent(NamedTuple):
    """A living parent."""

    known: processes.ProcessId
    memory: int
    used: float
    """Time of the last use, in seconds since the epoch, some seconds late."""
    socket: Path


def wanted() -> bool:
    """Return True if the user lets workers be forked from warm parents."""
    return os.environ.get(WARM_VARIABLE, "1") != "0"


def most() -> int:
    """Return the maximum number of parents."""
    given = os.environ.get(WARM_VARIABLE, "")
    return int(given) if given.isdecimal() and int(given) > 0 else MAX_PARENTS


def max_memory() -> int:
    """Return the maximum number of bytes that all parents may take together."""
    return min(MAX_MEMORY, int(psutil.virtual_memory().total) // PART_OF_MEMORY)


def found(runtime: Path, kinds: Sequence[str] = (WORKERS, DRIVERS)) -> list[Parent]:
    """Return the forkservers that live in this runtime folder."""
    parents = []
    for path in [path for kind in kinds for path in runtime.glob(f"{kind}-*.lock")]:
        record = private_files.read_json(path, ParentRecord)
        if record is not None and processes.alive(record.pid, record.start_time):  # else it has just begun or ended
            known = (record.pid, record.start_time)
            parents.append(Parent(known, record.memory, path.stat().st_mtime, path.with_suffix(".sock")))
    return parents


def surplus(parents: Sequence[Parent], count: int, memory: int) -> list[Parent]:
    """Return the parents to end, the least recently used first, so that at most `count` with `memory` bytes stay.

    The most recently used parent always stays: its user waits for it.
    """
    newest_first = sorted(parents, key=lambda parent: parent.used, reverse=True)
    total, stay = 0, 0
    for parent in newest_first:
        total += parent.memory
        if stay and (stay == count or total > memory):
            break
        stay += 1
    return newest_first[stay:][::-1]


def send_away(parents: Sequence[Parent]) -> None:
    """Ask the parents to end as soon as no job uses them; never waits."""
    for parent in parents:
        processes.send(parent.known, signal.SIGTERM)
