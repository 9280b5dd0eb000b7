"""Records hosts that failed: a file for each in the pool's runtime folder, until a connection succeeds.

Drivers write the files, the daemon keeps such a host from new work for a time that grows with each failure, and
`jupyter elastic host list` shows the reason.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from jupyter_elastic.hostfiles import hosts_file, hosts_on_demand
from jupyter_elastic.platform import private_files

FIRST_S, MAX_S = 30.0, 600.0
"""Seconds that a failed host is kept from new work: at first, and at most."""


class HostFailure(Struct, frozen=True, kw_only=True):
    """The reason why a host is kept from new work."""

    why: Annotated[str, Meta(max_length=4000)]
    failures: Annotated[int, Meta(ge=1)]
    """Consecutive failures; a failure while the host is kept out anyway does not count."""
    again_at: float
    """Time of the next try, in seconds since the epoch."""


def after(before: HostFailure | None, why: str, now: float) -> HostFailure:
    """Return the record of a host that failed at `now` (seconds since the epoch); `before` is its earlier record."""
    if before is not None and now < before.again_at:
        return msgspec.structs.replace(before, why=why[:4000])
    failures = 1 if before is None else before.failures + 1
    pause_s = min(FIRST_S * 2 ** min(failures - 1, 30), MAX_S)
    return HostFailure(why=why[:4000], failures=failures, again_at=now + pause_s)


def read(runtime: Path) -> dict[str, HostFailure]:
    """Read the records of the hosts of the pool with this runtime folder, by name."""
    noted = ((path.stem, private_files.read_json(path, HostFailure)) for path in _folder(runtime).glob("*.json"))
    return {name: failure for name, failure in noted if failure is not None}


def note(runtime: Path, name: str, why: str, now: float) -> None:
    """Record that a host has failed. OSError when that can't be written."""
    folder = private_files.private_dir(_folder(runtime))
    private_files.write_json(folder / f"{name}.json", after(read(runtime).get(name), why, now))


def forget(runtime: Path, name: str) -> None:
    """Remove the record of a host that works."""
    with contextlib.suppress(OSError):
        (_folder(runtime) / f"{name}.json").unlink()


def version(state: Path, runtime: Path) -> tuple[int, ...]:
    """Return a tuple that changes when the pool's hosts or their records do."""
    names = (hosts_file.NAME, hosts_on_demand.NAME, hosts_on_demand.STATUS)
    return tuple(changed(path) for path in (*(state / name for name in names), _folder(runtime)))


def _folder(runtime: Path) -> Path:
    return runtime / "failed-hosts"


def changed(path: Path) -> int:
    """Return the modification time of a file or folder in nanoseconds; 0 if it is missing."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - twice a second
    except OSError:
        return 0
