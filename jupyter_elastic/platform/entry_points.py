"""Finds installed packages' entry points by name; two packages that offer one name are an error at its use."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from jupyter_elastic.types.errors import ElasticError, EngineError

ENGINES = "jupyter_elastic.engines"
PARKING = "jupyter_elastic.parking"
"""Ways by which a session's worker leaves its device (`worker.device_parking.Way`)."""


def installed(group: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points of a group by name; of identical ones (a package found twice) the first."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        others = found.setdefault(entry.name, [])
        if all(other.value != entry.value for other in others):
            others.append(entry)
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
