"""What the bridge to a Ray cluster says: one JSON list of its nodes, or an answer a line to what it is asked. Pure."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

MOST_BYTES = 1_000_000
"""Of a line."""


class RayNode(Struct, frozen=True, kw_only=True):
    """A living node."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{1,100}$")]
    address: Annotated[str, Meta(max_length=200)]
    """By which the other nodes reach it."""
    cpus: Annotated[float, Meta(ge=0)] = 0.0
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    """What Ray gives away there."""
    here: bool = False
    """It is the machine that was asked on."""


class CreateGroup(Struct, frozen=True, tag="create"):
    """Ask for a placement group of one bundle; until there is room for it, Ray's autoscaler counts it as demand."""

    bundle: dict[str, float]


class RemoveGroup(Struct, frozen=True, tag="remove"):
    """Let go of it."""

    number: str


class ReadGroups(Struct, frozen=True, tag="read"):
    """Say which there are."""


ToBridge: TypeAlias = CreateGroup | RemoveGroup | ReadGroups


class RayGroup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A placement group."""

    number: str
    node: Annotated[str, Meta(pattern=r"^[0-9a-f]{0,100}$")] = ""
    """The id of the node that it has room on; empty: it waits."""
    address: Annotated[str, Meta(max_length=200)] = ""
    """That node's."""
    until: float | None = None
    """When the node goes, in seconds since the epoch; None: nobody knows."""


class RayGroups(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to each: all groups that this bridge has asked for and that still are."""

    groups: tuple[RayGroup, ...] = ()
    created: str = ""
    """The number of the new one."""
    problem: str = ""
    """Why it could not be done."""
