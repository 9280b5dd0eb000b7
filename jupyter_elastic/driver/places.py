"""The states of a worker in its group as one table, and the picture drawn from it. Pure.

A message of the worker (`Ready ...`, `Joined`, `Done`) or an action of `membership` (`Fork`, `Private`, `Go`,
`Removed`, `Kill`, `Restart`) leads from one state to another. A worker's process may end in any state.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Place(StrEnum):
    """The state of a worker."""

    WORKING = "working"
    """Runs its cell, in no group or in one of its own."""
    INIT = "init"
    """Waits for its group, at the first initialisation or at one after a shutdown."""
    COLLECTIVE = "collective"
    """Joining worker that waits at its first collective before the elastic loop."""
    RUN = "run"
    """Joining worker that waits at the beginning of the elastic loop."""
    JOINING = "joining"
    """Let into a group that is forming."""
    JOINED = "joined"
    DONE = "done"
    """Has ended its cell."""
    LEAVING = "leaving"
    """Removed from its group, or being killed."""


WAITING = (Place.INIT, Place.COLLECTIVE, Place.RUN)
"""States of a worker at a rendezvous."""
OUT = (Place.DONE, Place.LEAVING)
"""States of a worker that will be a member of no later group."""


class Move(NamedTuple):
    """One transition: in `origin`, `cause` leads to `target`. Without an origin the worker is created."""

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
"""Every possible transition; no other happens."""

_TABLE: dict[tuple[Place | None, str], Place] = {(move.origin, move.cause): move.target for move in MOVES}


def after(place: Place | None, cause: str) -> Place | None:
    """Return the state after `cause`; None if `cause` can't happen in `place`."""
    return _TABLE.get((place, cause))


def mermaid() -> str:
    """Return the table as a mermaid state diagram, as it stands in docs/state-diagrams.md."""
    joined: dict[tuple[str, str], list[str]] = {}
    for origin, cause, target in MOVES:
        if origin != target:
            joined.setdefault((origin or "[*]", target), []).append(cause.split()[0])
    lines = [f"    {origin} --> {target}: {', '.join(causes)}" for (origin, target), causes in joined.items()]
    return "\n".join(["stateDiagram-v2", *lines, *(f"    {place} --> [*]" for place in OUT)]) + "\n"
