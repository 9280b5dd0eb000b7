"""The connections to the daemon: how many each user has; those that are too many, or silent, are ended.

libzmq accepts by itself, and ends the whole process when no descriptor is left. It tells of each connection through a
queue of 1001 events, though, and accepts nothing while that queue is full: whoever ends the surplus as it reads the
queue needs no more than that many descriptors in reserve.

Knows descriptors and users; must not know frames.
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

MOST = 10_000
"""Connections in all; each takes libzmq some 20 kB."""
RESERVE = 1_200
"""Descriptors that connections never take: 1001 may be open before we know of them, the others are the daemon's own."""
ADMINS = 100
"""Connections of administrators beyond `MOST`."""
SILENT_S = 5.0
"""A connection on which nothing was said for so long from its beginning is ended."""
TOLD_S = 60.0
"""The log tells of a user's surplus no more often."""
LOOK_S = 0.001
"""For so long events are read at once, before the turn of frames."""
NO_ID = -1
"""What the kernel says where there is no UNIX id."""
_EVENT = struct.Struct("=Hi")
_CREDENTIALS = struct.Struct("3i")

log = logging.getLogger(__name__)


class Connection(Struct, eq=False):
    """One accepted connection."""

    user: str | int | None
    """The UNIX id, or by whose key it came over TCP; None: that is not known yet."""
    since: float
    surplus: bool = False
    """Its user has too many; it is told so."""
    heard: bool = False
    cut: bool = False
    peer: Any = None


class Connections:
    """All connections of a daemon, by descriptor.

    Args:
        by_user: How many a user may have; one more is told so, and of twice as many the rest is ended at once.
        is_admin: Whose are not limited.
        name_of: What a UNIX id is called, as far as that is known.
        is_barred: From whom nothing is to be heard now.
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
        self.most = most_connections()
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
        """How many there have been that are gone."""
        self._told: dict[str | int, float] = {}
        """When the log has last told of somebody's surplus."""

    def __len__(self) -> int:
        return len(self._open)

    def watch(self, socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """Hear of this socket's connections from now on (before it is bound); the socket that becomes readable then."""
        address = f"inproc://connections.{len(self._monitors)}"
        socket.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        monitor = self._context.socket(zmq.PAIR)
        monitor.rcvhwm = 1  # with the 1000 of the other end: what libzmq may accept before we know of it
        monitor.connect(address)
        self._monitors.append(monitor)
        return monitor

    def look(self) -> bool:
        """Take in what has changed, and end what is too much. True when there may be more to read."""
        new: dict[int, Connection] = {}
        more = False
        for monitor in self._monitors:
            until = self._monotonic() + LOOK_S
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
        """The connection on which `user` has just said his first word."""
        self._read_all()
        connection = self._open.get(descriptor)
        if connection is not None:
            connection.heard = True
            if connection.user is None:
                self._belongs(descriptor, connection, user)
        return connection

    def end(self, descriptor: int, peer: Any = None) -> None:
        """Hang up on whoever has this descriptor now, and on nobody but `peer` where that is given."""
        self._read_all()
        connection = self._open.get(descriptor)
        if connection is not None and (peer is None or connection.peer is peer):
            _cut(descriptor, connection)

    def end_silent(self) -> None:
        """End those that have said nothing since they came."""
        limit = self._monotonic() - SILENT_S
        for descriptor, connection in self._open.items():
            if not connection.heard and not connection.cut and connection.since < limit:
                _cut(descriptor, connection)

    def close(self) -> threading.Thread:
        """Read on until the context ends, so that libzmq's thread is not held up by a full queue meanwhile."""
        reader = threading.Thread(target=_read_out, args=(self._monitors,), name="connections")
        reader.start()
        return reader

    # --- inside -------------------------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        """What is known of a descriptor may be of the connection that had it before, perhaps another user's."""
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
    """Let this process open as many files as it may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if most_connections() < 256:
        log.warning("this process may open %d files only: let it have 4096 (`ulimit -n`, LimitNOFILE)", hard)


def most_connections() -> int:
    """How many connections the daemon's limit of descriptors allows."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if limit == resource.RLIM_INFINITY else max(min(limit - RESERVE, MOST), 64)


def _user_of(descriptor: int) -> int | None:
    """By UNIX id whose connection it is; None where the kernel can't say (TCP), or where it has gone."""
    with contextlib.suppress(OSError), _borrowed(descriptor) as socket:
        found = socket.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size)
        uid = int(_CREDENTIALS.unpack(found)[1])
        return None if uid == NO_ID else uid
    return None


def _cut(descriptor: int, connection: Connection) -> None:
    """Hang up; libzmq then closes the descriptor and says so."""
    connection.cut = True
    with contextlib.suppress(OSError), _borrowed(descriptor) as socket:
        socket.shutdown(sockets.SHUT_RDWR)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[sockets.socket]:
    """A connection of libzmq's. What is asked is the same for every kind, so that none is looked up."""
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
        while True:
            for monitor, _ in poller.poll():
                monitor.recv_multipart()
    except zmq.ContextTerminated:
        for monitor in monitors:
            monitor.close(linger=0)
