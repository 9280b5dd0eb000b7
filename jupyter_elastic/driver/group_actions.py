"""Declares what the machine of `membership` wants done; an engine carries the actions out, in order. Pure.

Knows names, slots and rounds; must not know how a worker is started, called or ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from jupyter_elastic.types import SlotId

Reason: TypeAlias = Literal["not elastic", "host lost", "too often", "left early"]
"""Why an attempt is given up."""


@dataclass(frozen=True)
class StartMember:
    """Start worker `name` on `slot`; `rank` of `size` is its probable rank."""

    name: str
    slot: SlotId
    rank: int
    size: int
    newcomer: bool = False
    """True if a group existed before the worker: its output is kept separate until it has joined."""


@dataclass(frozen=True)
class FormPrivateGroup:
    """Let this joining worker initialise a world of its own, in which it believes to be `rank` of `size` already."""

    name: str
    rank: int
    size: int
    alone: bool
    """True if the worker makes its collectives before `elastic.run` alone: no member would meet them."""


@dataclass(frozen=True)
class FormGroup:
    """Start a round: `members` in the order of their ranks."""

    round: int
    generation: int
    members: tuple[str, ...]
    restore: bool
    """True if no member holds state: rank 0 restores the last commit."""
    collective: bool = False
    """True if a worker joins by a collective before `elastic.run`, which the members' callbacks are to meet."""


@dataclass(frozen=True)
class RemoveMember:
    """Let this worker, which waits at the rendezvous, leave with exit code 0."""

    name: str
    keep: bool = False
    """True if the worker must save the group's state first: it holds the state and no holder goes on."""


@dataclass(frozen=True)
class CallMember:
    """Call this member to the rendezvous."""

    name: str


@dataclass(frozen=True)
class Kill:
    """End this worker: it is no member and not wanted, or can't get out of a broken join."""

    name: str


@dataclass(frozen=True)
class Drop:
    """End this joining worker, if it lives: it has failed, and the others go on without it. `slots` stay empty."""

    name: str
    slots: tuple[SlotId, ...]


@dataclass(frozen=True)
class Restart:
    """End these workers: when they are gone, all wanted workers are forked anew."""

    names: tuple[str, ...]
    planned: bool
    """True if no worker has died: the workers get time to save."""


@dataclass(frozen=True)
class Release:
    """Release this slot: no process is on it any more, and none will come."""

    slot: SlotId


@dataclass(frozen=True)
class Settled:
    """Report that all members of the round have joined."""

    round: int
    generation: int
    slots: tuple[SlotId, ...]
    complete: bool
    """True if the members are on exactly the slots of the command."""


@dataclass(frozen=True)
class GiveUp:
    """Fail the attempt.

    The causes: a worker of a cell that isn't elastic died, or was lost with its host; workers die again and again; or
    this worker ended its cell while the group still needed it.
    """

    name: str
    why: Reason


Action: TypeAlias = (
    StartMember
    | FormPrivateGroup
    | FormGroup
    | RemoveMember
    | CallMember
    | Kill
    | Drop
    | Restart
    | Release
    | Settled
    | GiveUp
)
