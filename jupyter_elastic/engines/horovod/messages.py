"""What Horovod's driver half sends to its worker half within `protocol.worker.Go`."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from jupyter_elastic.types.errors import ProtocolError


class StoreAddress(Struct, frozen=True):
    """Where the group's key-value store listens, on the loopback interface."""

    port: int


def decode(rendezvous: msgspec.Raw) -> StoreAddress:
    """ProtocolError when it is no address."""
    try:
        return msgspec.msgpack.decode(rendezvous, type=StoreAddress)
    except msgspec.DecodeError as problem:
        raise ProtocolError(f"the driver has sent no address of the group's store: {problem}") from problem
