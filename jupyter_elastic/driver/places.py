"""The places of a worker in its group as one table, and the picture drawn from it. Pure.

What leads from one place to another is a message of the worker (`Ready ...`, `Joined`, `Done`) or an action of
`membership` (`Fork`, `Private`, `Go`, `Removed`, `Kill`, `Restart`). A worker's process may go from wherever it is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Place(StrEnum):
    """Where a worker is."""

    WORKING = "working"
    """It runs its cell and is in no group, or in one of its own."""
    INIT = "init"
    """It waits for its group, at the first initialisation or at one after a shutdown."""
    COLLECTIVE = "collective"
    """A newcomer that waits at its first collective before the elastic loop."""
    RUN = "run"
    """A newcomer that waits at the beginning of the elastic loop."""
    JOINING = "joining"
    """It was let into a group that forms."""
    JOINED = "joined"
    """It is in the group."""
    DONE = "done"
    """Its cell has come to its end."""
    LEAVING = "leaving"
    """It was removed from its group, or is killed."""


WAITING = (Place.INIT, Place.COLLECTIVE, Place.RUN)
"""At a rendezvous."""
OUT = (Place.DONE, Place.LEAVING)
"""No member of any group to come."""


class Move(NamedTuple):
    """In `origin`, `cause` leads to `target`. No origin: the worker comes into being."""

    origin: Place | None
    cause: str
    target: Place


def _moves(origins: tuple[Place, ...], cause: str, target: Place) -> tuple[Move, ...]:
    return tuple(Move(origin, cause, target) for origin in origins)


_IN_CELL = (Place.WORKING, Place.JOINING, Place.JOINED)
MOVES: tuple[Move, ...] = (
    Move(None, "Fork", Place.WORKING),
    *_moves(_IN_CELL, "Ready init", Place.INIT),
    Move(Place.WORKING, "Ready collective", Place.COLLECTIVE),
    Move(Place.WORKING, "Ready run", Place.RUN),
    Move(Place.INIT, "Private", Place.WORKING),
    Move(Place.COLLECTIVE, "Private", Place.WORKING),
    Move(Place.RUN, "Private", Place.WORKING),
    *_moves(WAITING, "Go", Place.JOINING),
    Move(Place.JOINING, "Joined", Place.JOINED),
    *_moves((*_IN_CELL, *WAITING, Place.DONE), "Done", Place.DONE),
    *_moves(WAITING, "Removed", Place.LEAVING),
    Move(Place.WORKING, "Kill", Place.LEAVING),
    *_moves((*_IN_CELL, *WAITING), "Restart", Place.LEAVING),
)
"""Every way a place can change. What is not here does not happen."""

_TABLE: dict[tuple[Place | None, str], Place] = {(move.origin, move.cause): move.target for move in MOVES}


def after(place: Place | None, cause: str) -> Place | None:
    """The place after this; None where it can't happen."""
    return _TABLE.get((place, cause))


def mermaid() -> str:
    """The table as a mermaid state diagram, as it stands in ARCHITECTURE.md."""
    joined: dict[tuple[str, str], list[str]] = {}
    for origin, cause, target in MOVES:
        if origin != target:
            joined.setdefault((origin or "[*]", target), []).append(cause.split()[0])
    lines = [f"    {origin} --> {target}: {', '.join(causes)}" for (origin, target), causes in joined.items()]
    return "\n".join(["stateDiagram-v2", *lines, *(f"    {place} --> [*]" for place in OUT)]) + "\n"
