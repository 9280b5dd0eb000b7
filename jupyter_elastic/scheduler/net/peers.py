"""Identify the peers of the daemon's sockets: by the kernel's word on a UNIX socket, by the table of keys under CURVE.

Frames of a connection whose user's name is not known yet are held back. A user who is no longer valid is noticed.
Knows users, keys and connections; must not know when sockets are read, or what a frame means.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Sequence

import zmq
from msgspec import Struct

from jupyter_elastic.scheduler.access.auth import Caller, Guest, Keys, name_of, uid_of_peer
from jupyter_elastic.scheduler.access.users import Users
from jupyter_elastic.scheduler.net.connections import Connections
from jupyter_elastic.scheduler.net.rate_limits import Allowance
from jupyter_elastic.types import AgentOrigin

HELD_BYTES = 64 * 1024 * 1024
"""Bytes queued for all peers that are not identified yet; one more frame costs its sender the connection."""
NAMES_S = 60.0
"""Seconds between checks that users still have the names that they connected with."""


class Peer(Struct, eq=False):
    """A connection; the socket determines its user for as long as it lasts."""

    socket: zmq.Socket[bytes]
    identity: bytes
    user: str
    who: int | str = ""
    """UNIX id or public key that stands for the user."""
    guest: Guest | None = None
    """User and rights of a registered key; None for other users."""
    groups: tuple[str, ...] = ()
    """Groups of the user, as the registrar named them."""
    descriptor: int = -1
    role: str = "client"
    place: AgentOrigin | None = None
    """Origin of an agent."""
    received_at: float = 0.0
    """Monotonic time of the last frame."""
    gone: bool = False
    hung_up: bool = False
    """True once the peer was disconnected: later frames no longer count."""
    surplus: bool = False
    """True if the connection exceeds its user's maximum."""
    allowance: Allowance | None = None
    """Requests that the connection may still make; None: unlimited."""
    waiting_bytes: int = 0
    """Bytes queued for the peer until it reads."""

    @property
    def caller(self) -> Caller:
        """User or guest on the connection."""
        return self.user if self.guest is None else self.guest

    @property
    def uid(self) -> int | None:
        """UNIX id of the user; None for a user who connected by a key."""
        return self.who if isinstance(self.who, int) else None


class Peers:
    """All peers of a daemon, by connection."""

    def __init__(
        self,
        users: Users,
        connections: Connections,
        monotonic: Callable[[], float],
        *,
        hear: Callable[[Peer, zmq.Frame, float], None],
        wake: Callable[[], None],
        end: Callable[[Peer], None],
    ) -> None:
        """`hear` gets the frames of known users; `wake` is called after held ones; `end` ends an invalid peer."""
        self._users = users
        self._connections = connections
        self._monotonic = monotonic
        self._hear, self._wake, self._end = hear, wake, end
        self.keys: Keys | None = None
        """Keys that may connect; None without a CURVE socket."""
        self._held: dict[tuple[int, bytes], list[zmq.Frame]] = {}
        """Frames of connections whose user is not known yet."""
        self._held_bytes = 0
        self._names_at = monotonic() + NAMES_S
        self._peers: dict[tuple[int, bytes], Peer] = {}

    def close(self) -> None:
        """Drop the frames that are held back."""
        self._held.clear()
        self._held_bytes = 0

    def remove(self, peer: Peer) -> None:
        """Treat the next frame of this connection as that of a new peer."""
        self._peers.pop((id(peer.socket), peer.identity), None)

    def silent_clients(self, since: float) -> list[Peer]:
        """Return the clients without a frame since that monotonic time."""
        return [peer for peer in self._peers.values() if peer.received_at < since and peer.role == "client"]

    def end_changed(self) -> None:
        """End connections whose user is no longer valid: a removed key, an id under a new name."""
        if self.keys is not None and self.keys.read_again():
            self.judge_again({peer.who for peer in self._peers.values() if isinstance(peer.who, str)})
        if self._monotonic() >= self._names_at:
            self._names_at = self._monotonic() + NAMES_S
            for uid in {peer.who for peer in self._peers.values() if isinstance(peer.who, int)}:
                self._users.ask(uid, functools.partial(self._end_renamed, uid))

    def judge_again(self, keys: Collection[str]) -> None:
        """End the connections of those of the keys that may no longer connect, and renew the others' rights."""
        for peer in [peer for peer in self._peers.values() if peer.who in keys]:
            caller = self.keys.caller(str(peer.who)) if self.keys is not None else None
            if caller is None or name_of(caller) != peer.user:
                self._end(peer)
            else:
                self._allow(peer, caller)

    def _allow(self, peer: Peer, caller: Caller) -> None:
        if self.keys is not None and isinstance(caller, Guest):
            peer.guest, peer.groups = caller, self.keys.groups(str(peer.who))
        else:
            peer.guest, peer.groups = None, ()

    def _end_renamed(self, uid: int, user: str) -> None:
        if user == f"#{uid}":
            return  # the directory knows no name now: it may be out of reach
        for peer in [peer for peer in self._peers.values() if peer.who == uid and peer.user != user]:
            self._end(peer)

    def receive(self, socket: zmq.Socket[bytes], curve: bool, parts: Sequence[zmq.Frame], now: float) -> None:
        """Identify the sender of a message from a socket (`curve`: guarded by CURVE), and pass its frame on."""
        # Names that peers give themselves are refused: who took the name of one who just left would get their frames.
        identity = parts[0].bytes
        if len(identity) != 5 or identity[0] != 0:
            self._connections.end(_connection(parts[-1]))
        if len(parts) != 2 or len(identity) != 5 or identity[0] != 0:
            return
        who = self._who(curve, parts[1])
        if who is None:
            return
        key = (id(socket), identity)
        peer = self._peers.get(key)
        if peer is None:
            if isinstance(who, int):
                self._hold(socket, identity, who, parts[1])
                return
            caller = self.keys.caller(who) if self.keys is not None else None
            if caller is None:
                self._connections.end(_connection(parts[1]))
                return
            peer = self._meet(socket, identity, who, name_of(caller), parts[1])
            self._allow(peer, caller)
        self._hear(peer, parts[1], now)

    def _hold(self, socket: zmq.Socket[bytes], identity: bytes, uid: int, frame: zmq.Frame) -> None:
        """Queue frames of a new connection until its user is known."""
        key = (id(socket), identity)
        if key not in self._held:
            self._held[key] = []
            self._users.ask(uid, functools.partial(self._known, socket, identity, uid))
        if self._held_bytes + len(frame) > HELD_BYTES:
            self._connections.end(_connection(frame))
            return
        self._held[key].append(frame)
        self._held_bytes += len(frame)

    def _known(self, socket: zmq.Socket[bytes], identity: bytes, uid: int, user: str) -> None:
        """Process the queued frames of a connection whose user is now known."""
        frames = self._held.pop((id(socket), identity), ())
        self._held_bytes -= sum(map(len, frames))
        if not frames:
            return
        peer = self._meet(socket, identity, uid, user, frames[0])
        for frame in frames:
            self._hear(peer, frame, self._monotonic())
        self._wake()

    def _meet(self, socket: zmq.Socket[bytes], identity: bytes, who: int | str, user: str, frame: zmq.Frame) -> Peer:
        peer = Peer(socket, identity, user, who, descriptor=_connection(frame))
        self._peers[id(socket), identity] = peer
        connection = self._connections.find(peer.descriptor, user)
        if connection is not None:
            connection.peer, peer.surplus = peer, connection.surplus
        return peer

    @staticmethod
    def _who(curve: bool, frame: zmq.Frame) -> int | str | None:
        """Return the sender: a UNIX id or a public key.

        Each source is used only where the other end can't write it: `User-Id` counts under CURVE alone, where the check
        of the handshake set it; elsewhere a peer can put it into its own greeting.
        """
        try:
            if curve:
                return str(frame.get("User-Id")) or None
            return uid_of_peer(str(frame.get("Peer-Address")))
        except zmq.ZMQError:
            return None


def _connection(frame: zmq.Frame) -> int:
    """Return the descriptor of the connection that the frame came on."""
    with contextlib.suppress(zmq.ZMQError):
        return int(frame.get("__fd"))
    return -1
