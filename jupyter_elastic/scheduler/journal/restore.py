"""Restore the state from the journal by replay, and write the snapshot that shortens it.

Knows journal and core; must not know sockets or time.
"""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path

import msgspec

from jupyter_elastic.platform.version import __version__
from jupyter_elastic.scheduler import core as core_package
from jupyter_elastic.scheduler.access.shares import EQUAL, Shares
from jupyter_elastic.scheduler.core import Core, State
from jupyter_elastic.scheduler.journal.journal import Journal

LONG = 5_000
"""Events after the last snapshot from which on a new one is worth writing."""

_decoder = msgspec.msgpack.Decoder(State)


def restore(journal: Journal, shares: Shares = EQUAL, lease_s: float = 0.0) -> tuple[Core, int]:
    """Return the core with the journal's state, and the number of events read for it.

    JournalError if the journal is damaged. A snapshot that this version did not write is ignored.
    """
    core = Core(
        _from_snapshot(journal), weights=shares.weights, quotas=shares.quotas, most=shares.most, lease_s=lease_s
    )
    read = 0
    for event in journal.replay(core.state.seq):
        core.fold(event)
        read += 1
    return core, read


def save_snapshot(journal: Journal, core: Core) -> bool:
    """Write the present state beside the events; False if that failed, which is harmless."""
    if core.state.seq != journal.last_seq:
        return False
    return journal.save_snapshot(core.state.seq, layout(), msgspec.msgpack.encode(core.state))


@cache
def layout() -> str:
    """Return the version of the core's source; a snapshot of any other version is not read."""
    folder = Path(core_package.__file__).parent
    source = b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))
    return f"{__version__}:{zlib.crc32(source):08x}"


def _from_snapshot(journal: Journal) -> State | None:
    found = journal.snapshot(layout())
    if found is None:
        return None
    seq, body = found
    try:
        state = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return state if state.seq == seq else None
