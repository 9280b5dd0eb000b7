"""Finds installed packages' entry points by name; two packages that offer one name are an error at its use."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

from jupyter_elastic.types.errors import ElasticError, EngineError

ENGINES = "jupyter_elastic.engines"
PARKING = "jupyter_elastic.parking"
"""Ways by which a session's worker leaves its device (`worker.device_parking.Way`)."""


def installed(group: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points of a group by name; of identical ones (a package found twice) the first."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group):
        others = found.setdefault(entry.name, [])
        if all(other.value != entry.value for other in others):
            others.append(entry)
    return found


def entry_points(group: str) -> Iterator[EntryPoint]:
    """Yield the entry points of a group, from all folders of `sys.path` as they are now.

    Each folder is read once, and again after a change of it: `importlib.metadata` reads all packages at every call, in
    20 ms and more. A worker inherits what its warm parent has read.
    """
    seen: set[str] = set()
    for folder in dict.fromkeys(sys.path):
        with contextlib.suppress(OSError):
            there = Path(folder).stat()
            packages = _read(folder, there.st_ino, there.st_mtime_ns)
            for name in sorted(packages.keys() - seen):  # an older version further down is hidden
                seen.add(name)
                yield from (entry for entry in packages[name] if entry.group == group)


@functools.lru_cache(maxsize=256)
def _read(folder: str, _inode: int, _changed_ns: int) -> dict[str, list[EntryPoint]]:
    """Return the entry points that each package in a folder offers to this one."""
    found: dict[str, list[EntryPoint]] = {}
    for package in distributions(path=[folder or "."]):
        if ours := [entry for entry in package.entry_points if entry.group.startswith("jupyter_elastic.")]:
            found.setdefault(package.name.lower().replace("_", "-"), ours)
    return found


def load(entries: list[EntryPoint], error: type[ElasticError] = EngineError) -> Any:
    """Load the one entry point of a name; raise `error` when there are several or it can't be imported."""
    first, *others = entries
    if others:
        offers = " and ".join(f"{entry.value} (of {entry.dist.name if entry.dist else '?'})" for entry in entries)
        raise error(f"{len(entries)} installed packages offer {first.name!r}: {offers}. Uninstall all but one")
    try:
        return first.load()
    except Exception as problem:
        raise error(
            f"{first.name!r} ({first.value}) can't be loaded: {type(problem).__name__}: {problem}; "
            "repair or remove its package"
        ) from problem
