"""What the bridge to a Ray cluster says of its nodes: one JSON list on its stdout. Pure."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


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
