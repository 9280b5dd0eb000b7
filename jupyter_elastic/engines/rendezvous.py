"""Where a member of a group finds the group's store and is found by the others, as the driver tells each member."""

from __future__ import annotations

from msgspec import Struct

from jupyter_elastic.protocol.worker import LOOPBACK


class Rendezvous(Struct, frozen=True):
    """Comes within `protocol.worker.Go`; an engine can add to it."""

    store: int | str
    """On the member's own host: a port of the loopback interface, or the path of a UNIX socket."""
    address: str = LOOPBACK
    """By which the other members reach this one."""
