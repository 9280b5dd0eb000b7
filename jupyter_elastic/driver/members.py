"""The states of a worker in its group as one table, the worker that has them, and the table's picture. Pure.

A message of the worker (`Ready ...`, `Joined`, `Done`) or an action of `membership` (`StartMember`,
`FormPrivateGroup`, `FormGroup`, `RemoveMember`, `Kill`, `Restart`) leads from one state to another. A worker's
process may end in any state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from jupyter_elastic.types import SlotId


class MemberState(StrEnum):
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


WAITING = (MemberState.INIT, MemberState.COLLECTIVE, MemberState.RUN)
"""States of a worker at a rendezvous."""
OUT = (MemberState.DONE, MemberState.LEAVING)
"""States of a worker that will be a member of no later group."""


class MemberMove(NamedTuple):
    """One transition: in `origin`, `cause` leads to `target`. Without an origin the worker is created."""

    origin: MemberState | None
    cause: str
    target: MemberState


def _moves(origins: tuple[MemberState, ...], cause: str, target: MemberState) -> tuple[MemberMove, ...]:
    return tuple(MemberMove(origin, cause, target) for origin in origins)


_IN_CELL = (MemberState.WORKING, MemberState.JOINING, MemberState.JOINED)
MOVES: tuple[MemberMove, ...] = (
    MemberMove(None, "StartMember", MemberState.WORKING),
    *_moves(_IN_CELL, "Ready init", MemberState.INIT),
    MemberMove(MemberState.WORKING, "Ready collective", MemberState.COLLECTIVE),
    MemberMove(MemberState.WORKING, "Ready run", MemberState.RUN),
    MemberMove(MemberState.INIT, "FormPrivateGroup", MemberState.WORKING),
    MemberMove(MemberState.COLLECTIVE, "FormPrivateGroup", MemberState.WORKING),
    MemberMove(MemberState.RUN, "FormPrivateGroup", MemberState.WORKING),
    *_moves(WAITING, "FormGroup", MemberState.JOINING),
    MemberMove(MemberState.JOINING, "Joined", MemberState.JOINED),
    *_moves((*_IN_CELL, *WAITING, MemberState.DONE), "Done", MemberState.DONE),
    *_moves(WAITING, "RemoveMember", MemberState.LEAVING),
    MemberMove(MemberState.WORKING, "Kill", MemberState.LEAVING),
    *_moves((*_IN_CELL, *WAITING), "Restart", MemberState.LEAVING),
)
"""Every possible transition; no other happens."""

_TABLE: dict[tuple[MemberState | None, str], MemberState] = {(move.origin, move.cause): move.target for move in MOVES}


def after(place: MemberState | None, cause: str) -> MemberState | None:
    """Return the state after `cause`; None if `cause` can't happen in `place`."""
    return _TABLE.get((place, cause))


@dataclass
class Member:
    """A worker of the group, or one that is to join."""

    name: str
    slot: SlotId
    age: int
    place: MemberState = MemberState.WORKING
    round: int = 0
    """The last round that the worker was let into; 0: none yet."""
    has_state: bool = False
    """True if the worker holds the state of the training."""
    training: int = 0
    """Number of the training, within the cell, that the worker has come to."""
    new: bool = False
    """True if a group existed before the worker, and the worker has not taken a step with it."""
    reserved_rank: tuple[int, int] | None = None
    """Reserved rank of a joining worker, and the group's size."""
    early: bool = False
    """True if the worker joined by a collective before `elastic.run`, and has not come to `elastic.run` yet."""

    @property
    def waits(self) -> bool:
        """True while the worker is at a rendezvous."""
        return self.place in WAITING

    @property
    def out(self) -> bool:
        """True if the worker has ended its cell, or is on its way out."""
        return self.place in OUT

    def move(self, cause: str) -> bool:
        """Change the worker's state by the table; return True if `cause` can happen in that state."""
        target = after(self.place, cause)
        self.place = target or self.place
        return target is not None


def mermaid() -> str:
    """Return the table as a mermaid state diagram, as it stands in docs/state-diagrams.md."""
    joined: dict[tuple[str, str], list[str]] = {}
    for origin, cause, target in MOVES:
        if origin != target:
            joined.setdefault((origin or "[*]", target), []).append(cause.split()[0])
    lines = [f"    {origin} --> {target}: {', '.join(causes)}" for (origin, target), causes in joined.items()]
    return "\n".join(["stateDiagram-v2", *lines, *(f"    {place} --> [*]" for place in OUT)]) + "\n"
