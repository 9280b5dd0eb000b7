"""The addresses of a group's store and of one member, as the driver sends them to that member."""

from __future__ import annotations

from msgspec import Struct

from jupyter_elastic.protocol.worker_messages import LOOPBACK


class Rendezvous(Struct, frozen=True):
    """The rendezvous within `protocol.worker_messages.Go`; an engine can add to it."""

    store: int | str
    """The store on the member's own host: a port of the loopback interface, or the path of a UNIX socket."""
    address: str = LOOPBACK
    """Address by which the other members reach this one."""
