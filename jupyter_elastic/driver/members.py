"""The states of a worker in its group as one table, the worker that has them, and the table's picture. Pure.

A message of the worker, an action of the driver or the end of the process leads from one state to the next; any other
move raises `UndefinedMove`. Not in the table: whether a `Joined` or an `Unmet` is about the present round, and which
rank a worker gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from jupyter_elastic.driver.group_actions import FormGroup, FormPrivateGroup, Kill, RemoveMember, Restart, StartMember
from jupyter_elastic.protocol.worker_messages import CellDone, Entered, Failed, Joined, TookPart, Unmet
from jupyter_elastic.types import SlotId
from jupyter_elastic.types.errors import ProtocolError

State = TypeVar("State", bound=StrEnum)
Cause: TypeAlias = type
"""The class of an event: of a worker's message, of an action, or one of this module's."""


class UndefinedMove(ProtocolError):
    """An event came in a state for which the table has no row."""


class ReadyInit:
    """The worker waits at an initialisation (`Ready`)."""


class ReadyCollective:
    """The worker waits at its first collective before the elastic loop (`Ready`)."""


class ReadyRun:
    """The worker waits at the beginning of the elastic loop (`Ready`)."""


class Gone:
    """The worker's process is gone."""


class Table(Generic[State]):
    """The rows of a machine: by the class of the event, the next state for each state."""

    def __init__(self, rows: Mapping[Cause, Mapping[State, State]]) -> None:
        self._rows = rows

    def after(self, state: State | None, cause: Cause) -> State:
        """Return the next state; UndefinedMove if the table has no such row."""
        rows = self._rows.get(cause, {})
        if state is None or state not in rows:
            raise UndefinedMove(f"{cause.__name__} is not defined in state {state or '(new)'}")
        return rows[state]


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
    GONE = "gone"


WAITING = (MemberState.INIT, MemberState.COLLECTIVE, MemberState.RUN)
"""States of a worker at a rendezvous."""
OUT = (MemberState.DONE, MemberState.LEAVING)
"""States of a worker that will be a member of no later group."""
READY: dict[str, Cause] = {"init": ReadyInit, "collective": ReadyCollective, "run": ReadyRun}
"""Event of a worker's `Ready`, by the point where the worker waits."""


class MemberMove(NamedTuple):
    """One row: in `origin`, an event of class `cause` leads to `target`. Without an origin the worker is created."""

    origin: MemberState | None
    cause: Cause
    target: MemberState


def _moves(origins: Iterable[MemberState], cause: Cause, target: MemberState) -> tuple[MemberMove, ...]:
    return tuple(MemberMove(origin, cause, target) for origin in origins)


def _stays(origins: Iterable[MemberState], causes: Iterable[Cause]) -> tuple[MemberMove, ...]:
    return tuple(MemberMove(origin, cause, origin) for origin in origins for cause in causes)


_IN_CELL = (MemberState.WORKING, MemberState.JOINING, MemberState.JOINED)
FACTS = (Entered, Unmet, TookPart, Failed)
"""Messages about the cell: the worker's state stays."""
MOVES: tuple[MemberMove, ...] = (
    MemberMove(None, StartMember, MemberState.WORKING),
    *_moves(_IN_CELL, ReadyInit, MemberState.INIT),
    MemberMove(MemberState.WORKING, ReadyCollective, MemberState.COLLECTIVE),
    MemberMove(MemberState.WORKING, ReadyRun, MemberState.RUN),
    *_moves(WAITING, FormPrivateGroup, MemberState.WORKING),
    *_moves(WAITING, FormGroup, MemberState.JOINING),
    MemberMove(MemberState.JOINING, Joined, MemberState.JOINED),
    *_moves((*_IN_CELL, *WAITING), CellDone, MemberState.DONE),
    *_moves(WAITING, RemoveMember, MemberState.LEAVING),
    MemberMove(MemberState.WORKING, Kill, MemberState.LEAVING),
    *_moves((*_IN_CELL, *WAITING), Restart, MemberState.LEAVING),
)
"""Every move to another state but that of a process that ends, which it may do in each state."""
STAYS: tuple[MemberMove, ...] = (
    *_stays((*_IN_CELL, *WAITING), FACTS),
    # Its own code has ended the wait, and waits again: the answer to the first wait is the answer to this one.
    *_stays((*WAITING, MemberState.JOINING), (ReadyCollective, ReadyRun)),
    *_stays(WAITING, (ReadyInit,)),
    # A member that is killed is one until its process is gone: its end counts as a death.
    *_stays((MemberState.INIT, MemberState.JOINING, MemberState.JOINED), (Kill,)),
    # Sent before it knew of its end, or by what runs at its exit; or known only after its process was gone.
    *_stays((*OUT, MemberState.GONE), (ReadyInit, ReadyCollective, ReadyRun, Joined, CellDone, *FACTS)),
)
"""Every event that leaves the state as it is."""
TABLE = Table[MemberState](
    {
        cause: {row.origin: row.target for row in (*MOVES, *STAYS) if row.cause is cause and row.origin is not None}
        for cause in {row.cause for row in (*MOVES, *STAYS)}
    }
    | {Gone: dict.fromkeys(MemberState, MemberState.GONE)}
)


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

    def move(self, cause: Cause) -> bool:
        """Change the worker's state by the table, and return True if it is another one; UndefinedMove if no row."""
        before, self.place = self.place, TABLE.after(self.place, cause)
        return self.place != before


def mermaid() -> str:
    """Return the table as a mermaid state diagram, as it stands in docs/state-diagrams.md."""
    joined: dict[tuple[str, str], list[str]] = {}
    for origin, cause, target in MOVES:
        joined.setdefault((origin or "[*]", target), []).append(cause.__name__)
    lines = [f"    {origin} --> {target}: {', '.join(causes)}" for (origin, target), causes in joined.items()]
    return "\n".join(["stateDiagram-v2", *lines, *(f"    {place} --> [*]" for place in OUT)]) + "\n"
