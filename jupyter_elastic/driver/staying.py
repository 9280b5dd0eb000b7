"""Keeps the driver of a session's cell for the session's next cell: the cost of a fork and a first run is paid once.

The driver listens in the session's folder, as the workers do, and an agent gives it the next cell instead of forking a
driver. Nothing depends on it: if it is gone or does not answer at once, a driver is forked as for any cell. Knows the
session's folder; must not know attempts.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time

from jupyter_elastic.forkserver.fork_client import our_source
from jupyter_elastic.jobfiles.sessions import SessionFolder
from jupyter_elastic.platform import processes
from jupyter_elastic.platform.peer import check_same_user
from jupyter_elastic.protocol.driver_messages import DRIVER_STAYS, DriverStays
from jupyter_elastic.types.errors import NotAllowed

STAY_S = 600.0
"""Seconds without a cell after which the driver leaves."""
POLL_S = 5.0
"""Seconds between two checks whether another driver listens in this one's place."""


class Staying:
    """One driver's listening in its session's folder, from the end of its first cell on."""

    def __init__(self, name: str) -> None:
        self._folder = SessionFolder(name)
        self._listener: socket.socket | None = None
        self._inode = 0

    def next_cell(self) -> socket.socket | None:
        """Return the connection of the agent that has another cell; None when the session is over, or no cell comes."""
        with contextlib.ExitStack() as ends, contextlib.suppress(OSError):  # with a full disk the driver leaves
            session = self._folder.read()
            if session is None or self._folder.ended() is not None:
                return None
            members = self._folder.members(session)
            if len(members) < session.size:
                return None
            poll = select.poll()
            for member in members:
                handle = os.pidfd_open(member.pid)
                ends.callback(os.close, handle)
                poll.register(handle, select.POLLIN)
            listener = self._listen()
            poll.register(listener, select.POLLIN)
            until = time.monotonic() + STAY_S
            while (left_s := until - time.monotonic()) > 0 and self._is_ours():
                ready = {descriptor for descriptor, _ in poll.poll(min(left_s, POLL_S) * 1000 + 1)}
                if ready - {listener.fileno()}:
                    break
                if ready and (connected := _accept(listener)) is not None:
                    return connected
        return None

    def _listen(self) -> socket.socket:
        """Return the listener of the first cell; a new one if the session was made anew or another driver came."""
        if self._listener is None or not self._is_ours():
            path = self._folder.driver_socket
            path.unlink(missing_ok=True)
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(path))
            self._listener.listen(8)
            self._inode = path.stat().st_ino
        return self._listener

    def _is_ours(self) -> bool:
        try:
            return self._folder.driver_socket.stat().st_ino == self._inode
        except OSError:
            return False


def _accept(listener: socket.socket) -> socket.socket | None:
    connected, _ = listener.accept()
    try:
        check_same_user(connected)
        connected.sendall(DRIVER_STAYS.encode(DriverStays(processes.this_process(), our_source())))
    except (OSError, NotAllowed):  # the agent is gone, or another user's
        connected.close()
        return None
    return connected
