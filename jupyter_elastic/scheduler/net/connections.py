"""Count the connections to the daemon by user, and end those that are too many or silent.

libzmq accepts by itself, and ends the whole process when no descriptor is left. It reports each connection through a
queue of 1001 events, though, and accepts nothing while that queue is full: a reader of the queue that ends the surplus
needs no more than that many descriptors in reserve. Knows descriptors and users; must not know frames.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import socket as sockets
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import zmq
from msgspec import Struct

MAX_CONNECTIONS = 10_000
"""Maximum number of connections; each takes libzmq some 20 kB."""
RESERVE = 1_200
"""Descriptors that connections never take: 1001 may be open before we know of them, the others are the daemon's own."""
ADMINS = 100
"""Connections of administrators beyond `MAX_CONNECTIONS`."""
SILENT_S = 5.0
"""Seconds after which a connection that has not sent anything is ended."""
TOLD_S = 60.0
"""Minimum seconds between log messages about a user's surplus."""
POLL_S = 0.001
"""Maximum seconds of reading events at once, before frames are read."""
NO_ID = -1
"""Value of the kernel for "no UNIX id"."""
_EVENT = struct.Struct("=Hi")
_CREDENTIALS = struct.Struct("3i")

log = logging.getLogger(__name__)


class Connection(Struct, eq=False):
    """One accepted connection."""

    user: str | int | None
    """UNIX id, or owner of the key used over TCP; None: not known yet."""
    since: float
    surplus: bool = False
    """True if its user has too many connections; requests on it are refused with that reason."""
    heard: bool = False
    cut: bool = False
    peer: Any = None


class Connections:
    """All connections of a daemon, by descriptor.

    Args:
        by_user: Maximum of a user; requests on further ones are refused, and beyond twice as many they are ended.
        is_admin: True for users without limit.
        name_of: Returns the name of a UNIX id, as far as known.
        is_barred: True for users whose new connections are ended now.
        left: Called with the `peer` of a connection that has ended.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        monotonic: Callable[[], float],
        *,
        by_user: float,
        is_admin: Callable[[str], bool],
        name_of: Callable[[int], str],
        is_barred: Callable[[str], bool],
        left: Callable[[Any], None],
    ) -> None:
        self.by_user = by_user
        self.most = max_connections()
        self._context = context
        self._monotonic = monotonic
        self._is_admin = is_admin
        self._name_of = name_of
        self._is_barred = is_barred
        self._left = left
        self._monitors: list[zmq.Socket[bytes]] = []
        self._open: dict[int, Connection] = {}
        self._count: Counter[str | int | None] = Counter()
        self.ended = 0
        """Number of connections that have ended."""
        self._told: dict[str | int, float] = {}
        """Time of the last log message about a user's surplus."""

    def __len__(self) -> int:
        return len(self._open)

    def watch(self, socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """Monitor a socket, before it is bound; return the socket that becomes readable on connection events."""
        address = f"inproc://connections.{len(self._monitors)}"
        socket.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        monitor = self._context.socket(zmq.PAIR)
        monitor.rcvhwm = 1  # with the 1000 of the other end: what libzmq may accept before we know of it
        monitor.connect(address)
        self._monitors.append(monitor)
        return monitor

    def look(self) -> bool:
        """Process changes of connections, and end the surplus. True if there may be more to read."""
        new: dict[int, Connection] = {}
        more = False
        for monitor in self._monitors:
            until = self._monotonic() + POLL_S
            while True:
                try:
                    head, _endpoint = monitor.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                event, descriptor = _EVENT.unpack(head)
                new.pop(descriptor, None)
                self._gone(descriptor)
                if event == zmq.EVENT_ACCEPTED:  # a descriptor may be another connection's by now: the last word counts
                    new[descriptor] = self._open[descriptor] = Connection(None, self._monotonic())
                    self._count[None] += 1
                if self._monotonic() > until:
                    more = True
                    break
        for descriptor, connection in new.items():
            self._judge(descriptor, connection)
        return more

    def find(self, descriptor: int, user: str) -> Connection | None:
        """Return the connection on which `user` has just sent a first frame."""
        self._read_all()
        connection = self._open.get(descriptor)
        if connection is not None:
            connection.heard = True
            if connection.user is None:
                self._belongs(descriptor, connection, user)
        return connection

    def end(self, descriptor: int, peer: Any = None) -> None:
        """End the connection that has this descriptor now; with `peer` only if it is that peer's."""
        self._read_all()
        connection = self._open.get(descriptor)
        if connection is not None and (peer is None or connection.peer is peer):
            _cut(descriptor, connection)

    def end_silent(self) -> None:
        """End connections that have sent nothing since they were accepted."""
        limit = self._monotonic() - SILENT_S
        for descriptor, connection in self._open.items():
            if not connection.heard and not connection.cut and connection.since < limit:
                _cut(descriptor, connection)

    def close(self) -> threading.Thread:
        """Read on until the context ends, so that a full queue does not hold up libzmq's thread meanwhile."""
        reader = threading.Thread(target=_read_out, args=(self._monitors,), name="connections")
        reader.start()
        return reader

    # --- inside -------------------------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        """Process all events: data of a descriptor may be of its previous connection, perhaps another user's."""
        while self.look():
            pass

    def _judge(self, descriptor: int, connection: Connection) -> None:
        user = _user_of(descriptor)
        if user is not None:
            self._belongs(descriptor, connection, user)
        elif self._count[None] > self.most // 4 or len(self._open) > self.most:
            _cut(descriptor, connection)

    def _belongs(self, descriptor: int, connection: Connection, user: str | int) -> None:
        self._count[None] -= 1
        self._count[user] += 1
        connection.user = user
        count = self._count[user]
        name = self._name_of(user) if isinstance(user, int) else user
        if self._is_admin(name):
            if len(self._open) > self.most + ADMINS:
                _cut(descriptor, connection)
            return
        connection.surplus = count > self.by_user
        if count > 2 * self.by_user or len(self._open) > self.most or self._is_barred(name):
            _cut(descriptor, connection)
        if connection.surplus and self._monotonic() > self._told.get(user, -TOLD_S) + TOLD_S:
            self._told[user] = self._monotonic()
            log.warning("%s has %d connections; more are refused", name, count - 1, extra={"user": name})

    def _gone(self, descriptor: int) -> None:
        connection = self._open.pop(descriptor, None)
        if connection is None:
            return
        self.ended += 1
        self._count[connection.user] -= 1
        if not self._count[connection.user]:
            del self._count[connection.user]
        if connection.peer is not None:
            self._left(connection.peer)


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the maximum that this process may have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if max_connections() < 256:
        log.warning("this process may open %d files only: let it have 4096 (`ulimit -n`, LimitNOFILE)", hard)


def max_connections() -> int:
    """Return the number of connections that the daemon's limit of descriptors allows."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if limit == resource.RLIM_INFINITY else max(min(limit - RESERVE, MAX_CONNECTIONS), 64)


def _user_of(descriptor: int) -> int | None:
    """Return the UNIX id of a connection's user; None if the kernel can't tell (TCP), or if it has ended."""
    with contextlib.suppress(OSError), _borrowed(descriptor) as socket:
        found = socket.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size)
        uid = int(_CREDENTIALS.unpack(found)[1])
        return None if uid == NO_ID else uid
    return None


def _cut(descriptor: int, connection: Connection) -> None:
    """Shut the connection down; libzmq then closes the descriptor and reports it."""
    connection.cut = True
    with contextlib.suppress(OSError), _borrowed(descriptor) as socket:
        socket.shutdown(sockets.SHUT_RDWR)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[sockets.socket]:
    """Wrap a libzmq connection's descriptor; the family is fixed, as the calls used are the same for each kind."""
    socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM, fileno=descriptor)
    try:
        yield socket
    finally:
        socket.detach()


def _read_out(monitors: list[zmq.Socket[bytes]]) -> None:
    poller = zmq.Poller()
    for monitor in monitors:
        poller.register(monitor, zmq.POLLIN)
    try:
        while monitors:  # none: the transport has never listened
            for monitor, _ in poller.poll():
                monitor.recv_multipart()
    except zmq.ContextTerminated:
        for monitor in monitors:
            monitor.close(linger=0)
