"""Where a member of a group finds the group's store and is found by the others, as the driver tells each member."""

from __future__ import annotations

import socket

from msgspec import Struct

from jupyter_elastic.types.errors import EngineError

LOOPBACK = "127.0.0.1"


class Rendezvous(Struct, frozen=True):
    """Comes within `protocol.worker.Go`; an engine can add to it."""

    store: int | str
    """On the member's own host: a port of the loopback interface, or the path of a UNIX socket."""
    address: str = LOOPBACK
    """By which the other members reach this one."""


def interface(address: str) -> str:
    """The interface that has the address; its name differs from host to host. EngineError when none has it."""
    if address == LOOPBACK:
        return "lo"
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.family == socket.AF_INET and entry.address == address for entry in entries):
            return name
    raise EngineError(f"no interface of {socket.gethostname()} has the address {address}")
