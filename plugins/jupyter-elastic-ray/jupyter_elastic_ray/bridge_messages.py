"""Defines the output of a Ray cluster's bridge: a JSON list of the nodes, or an answer a line to requests. Pure."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

MAX_BYTES = 1_000_000
"""Maximum bytes of a line."""


class RayNode(Struct, frozen=True, kw_only=True):
    """A live node."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{1,100}$")]
    address: Annotated[str, Meta(max_length=200)]
    """Address for connections from the other nodes."""
    cpus: Annotated[float, Meta(ge=0)] = 0.0
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    """Resources that Ray allocates there."""
    here: bool = False
    """True for the machine that the bridge runs on."""


class CreateGroup(Struct, frozen=True, tag="create"):
    """Request a placement group of one bundle; until there is room for it, Ray's autoscaler counts it as demand."""

    bundle: dict[str, float]


class RemoveGroup(Struct, frozen=True, tag="remove"):
    """Remove the group."""

    number: str


class ReadGroups(Struct, frozen=True, tag="read"):
    """List the groups."""


ToBridge: TypeAlias = CreateGroup | RemoveGroup | ReadGroups


class RayGroup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A placement group."""

    number: str
    node: Annotated[str, Meta(pattern=r"^[0-9a-f]{0,100}$")] = ""
    """Id of the group's node; empty: the group waits for room."""
    address: Annotated[str, Meta(max_length=200)] = ""
    until: float | None = None
    """End of the node, in seconds since the epoch; None: not known."""


class RayGroups(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to each request: all groups that this bridge has requested and not lost."""

    groups: tuple[RayGroup, ...] = ()
    created: str = ""
    """Number of the new group."""
    problem: str = ""
