"""Tracks the sockets by which a library holds a process group together, to shut them down when the group breaks.

Gloo has no call that interrupts a wait. A member that waits for one that lives, and itself waits for the dead, would
wait for the whole time-out; a connection that is closed ends the wait at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path


class GroupSockets:
    """The TCP connections that were opened in this process while the present group formed."""

    def __init__(self) -> None:
        self._before: frozenset[tuple[int, int]] = frozenset()
        self._own: frozenset[tuple[int, int]] | None = frozenset()
        """Descriptor and inode of each socket; None while the group forms."""

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Count the sockets that are opened in this block, while the group forms, as the group's own."""
        self._before, self._own = _open_sockets(), None
        try:
            yield
        finally:
            self._own = _open_sockets() - self._before

    @property
    def forming(self) -> bool:
        """True while the group is not formed yet."""
        return self._own is None

    def hang_up(self, how: int = socket.SHUT_RDWR) -> None:
        """Shut the group's connections down, from any thread, while the group forms too; `how` as sockets have it.

        Listening sockets are spared: Gloo ends the process when its `accept` fails.
        """
        own = _open_sockets() - self._before if self._own is None else self._own
        for descriptor, inode in own:
            with contextlib.suppress(OSError):
                _shut_down(os.dup(descriptor), inode, how)


def _shut_down(descriptor: int, inode: int, how: int) -> None:
    """Shut this TCP connection down, unless another file has its number by now; close the descriptor."""
    status = os.fstat(descriptor)
    if not (stat.S_ISSOCK(status.st_mode) and status.st_ino == inode):
        os.close(descriptor)
        return
    with socket.socket(fileno=descriptor) as connected:
        tcp = connected.family in {socket.AF_INET, socket.AF_INET6} and connected.type == socket.SOCK_STREAM
        if tcp and not connected.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            connected.shutdown(how)


def _open_sockets() -> frozenset[tuple[int, int]]:
    """Return this process's sockets, as (descriptor, inode); empty if there is no `/proc`."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                status = os.fstat(int(entry.name))
                if stat.S_ISSOCK(status.st_mode):
                    found.add((int(entry.name), status.st_ino))
    return frozenset(found)
