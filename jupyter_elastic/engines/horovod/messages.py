"""What Horovod's driver half sends to its worker half within `protocol.worker.Go`."""

from __future__ import annotations

from msgspec import Struct


class StoreAddress(Struct, frozen=True):
    """Where the group's key-value store listens, on the loopback interface."""

    port: int
