"""The messages between the engine's halves: the store's address, the requests to it and their answers. Pure."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from jupyter_elastic.engines.common.rendezvous import Rendezvous
from jupyter_elastic.protocol.framing import Frames

MAX_VALUE = 256 * 1024
"""Maximum bytes of one value; Gloo's are addresses of some hundred bytes."""
MAX_WAIT_S = 3600.0

Key: TypeAlias = Annotated[str, Meta(max_length=1024)]
Value: TypeAlias = Annotated[bytes, Meta(max_length=MAX_VALUE)]
Keys: TypeAlias = Annotated[tuple[Key, ...], Meta(max_length=256)]


class StoreAddress(Rendezvous, frozen=True, kw_only=True):
    """The address of a group's store, a UNIX socket."""

    round: int


class _Request(Struct, frozen=True, tag=True):
    pass


class Open(_Request, frozen=True):
    """The first request of a connection: the round whose store it is for."""

    round: int


class Set(_Request, frozen=True):
    """Replace a value."""

    key: Key
    value: Value


class Get(_Request, frozen=True):
    """Return the value of a key, or None when it was not set in time."""

    key: Key
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)]


class Add(_Request, frozen=True):
    """Add to a decimal number, 0 at first."""

    key: Key
    amount: int


class CompareSet(_Request, frozen=True):
    """Set to `desired` a value that is `expected` (absent, if that is empty); answers with the value after that."""

    key: Key
    expected: Value
    desired: Value


class Delete(_Request, frozen=True):
    """Delete a key; answers with 1 if it was there, else 0."""

    key: Key


class Count(_Request, frozen=True):
    """Count those of these keys that are set; without keys, all."""

    keys: Keys = ()


class StoreAnswer(Struct, frozen=True):
    """The answer to a request."""

    value: bytes | None = None
    number: int = 0
    refused: str = ""
    """Reason why nothing was done."""


Request: TypeAlias = Open | Set | Get | Add | CompareSet | Delete | Count

REQUESTS: Frames[Request] = Frames(Request, "requests to the group's store", 2 * MAX_VALUE + 4096)
ANSWERS: Frames[StoreAnswer] = Frames(StoreAnswer, "answers of the group's store", MAX_VALUE + 4096)
