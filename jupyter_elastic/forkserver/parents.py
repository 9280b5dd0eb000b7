"""Which warm parents (forkservers) a user has in a pool, and which of them are too many.

Each holds a lock in the pool's runtime folder; the lock's file says who it is and how much memory it takes, and is
touched while it is used. Knows those files and signals; must not know what a forkserver does.
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
"""`0`: never fork workers from warm parents; another number: keep so many parents at most."""
MOST = 8
"""Parents of a user in a pool, where nobody has chosen."""
MOST_MEMORY, PART_OF_MEMORY = 4 * 1024**3, 8
"""Bytes that all of them may take: so many, but not more than this part of the machine's memory."""
WORKERS, DRIVERS = "workers", "drivers"
"""What forkservers fork; their files are named by it."""


class Record(Struct, frozen=True, array_like=True):
    """What a parent's lock file says."""

    pid: int
    start_time: float
    memory: int = 0
    """Bytes; 0 until it can fork."""


class Parent(NamedTuple):
    """A parent that lives."""

    known: processes.ProcessId
    memory: int
    used: float
    """When it was last used, in seconds since the epoch, some seconds late."""
    socket: Path


def wanted() -> bool:
    """Whether the user lets workers be forked from warm parents."""
    return os.environ.get(WARM_VARIABLE, "1") != "0"


def most() -> int:
    """How many parents may be kept."""
    given = os.environ.get(WARM_VARIABLE, "")
    return int(given) if given.isdecimal() and int(given) > 0 else MOST


def most_memory() -> int:
    """How many bytes they may take together."""
    return min(MOST_MEMORY, int(psutil.virtual_memory().total) // PART_OF_MEMORY)


def found(runtime: Path, kinds: Sequence[str] = (WORKERS, DRIVERS)) -> list[Parent]:
    """The forkservers that live in this runtime folder."""
    parents = []
    for path in [path for kind in kinds for path in runtime.glob(f"{kind}-*.lock")]:
        record = private_files.read_json(path, Record)
        if record is not None and processes.alive(record.pid, record.start_time):  # else it has just begun or ended
            known = (record.pid, record.start_time)
            parents.append(Parent(known, record.memory, path.stat().st_mtime, path.with_suffix(".sock")))
    return parents


def surplus(parents: Sequence[Parent], count: int, memory: int) -> list[Parent]:
    """Those to end, the least recently used first, so that at most `count` stay and take at most `memory` bytes.

    The one used last stays in any case: its user waits for it.
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
    """Tell them to end as soon as no job uses them; comes back at once."""
    for parent in parents:
        processes.send(parent.known, signal.SIGTERM)
