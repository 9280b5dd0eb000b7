"""Identifies the process at the other end of a UNIX socket, as the kernel reports it (SO_PEERCRED)."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

from jupyter_elastic.types.errors import NotAllowed

_ucred = struct.Struct("3i")


class PeerIdentity(NamedTuple):
    """The process that connected, or that listens."""

    pid: int
    uid: int
    gid: int


def peer_of(connected: socket.socket) -> PeerIdentity:
    """Return the process at the other end."""
    return PeerIdentity(*_ucred.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _ucred.size)))


def check_same_user(connected: socket.socket) -> None:
    """Raise NotAllowed unless the other end runs as the same user as this process."""
    uid = peer_of(connected).uid
    if uid != os.getuid():
        raise NotAllowed(f"user {uid} may not connect to a process of user {os.getuid()}")
