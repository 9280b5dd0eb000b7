"""Identify the peers of the daemon's sockets: by the kernel's word on a UNIX socket, by their public key under CURVE.

Frames of a connection whose user is not known yet are held back. A user who is no longer valid is noticed.
Knows authenticators and connections; must not know when sockets are read, or what a frame means.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Sequence

import zmq
from msgspec import Struct

from jupyter_elastic.scheduler.access.auth import Caller, caller_of, uid_of_peer
from jupyter_elastic.scheduler.access.authenticators import Authenticators, Verdict
from jupyter_elastic.scheduler.net.connections import Connections
from jupyter_elastic.scheduler.net.rate_limits import Allowance
from jupyter_elastic.types import AgentOrigin, Credentials, Identity
from jupyter_elastic.types.errors import NotAllowed

HELD_BYTES = 64 * 1024 * 1024
"""Bytes queued for all peers that are not identified yet; one more frame costs its sender the connection."""
NAMES_S = 60.0
"""Seconds between checks that users still are those that they connected as."""


class Peer(Struct, eq=False):
    """A connection; the socket determines its user for as long as it lasts."""

    socket: zmq.Socket[bytes]
    identity: bytes
    user: str
    credentials: Credentials = Credentials()
    given: Identity | None = None
    """Identity with rights and groups; None: the user has those of the name."""
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
    refusal: str = ""
    """Reason for which an authenticator refuses the user; empty if none does."""
    allowance: Allowance | None = None
    """Requests that the connection may still make; None: unlimited."""
    waiting_bytes: int = 0
    """Bytes queued for the peer until it reads."""

    @property
    def caller(self) -> Caller:
        """User or guest on the connection."""
        return self.user if self.given is None else caller_of(self.given)

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of the user, as the authenticator named them."""
        return () if self.given is None else self.given.groups

    @property
    def uid(self) -> int | None:
        """UNIX id of the user; None for a user who connected by a key."""
        return self.credentials.uid


class Peers:
    """All peers of a daemon, by connection."""

    def __init__(
        self,
        authenticators: Authenticators,
        connections: Connections,
        monotonic: Callable[[], float],
        *,
        hear: Callable[[Peer, zmq.Frame, float], None],
        wake: Callable[[], None],
        end: Callable[[Peer], None],
    ) -> None:
        """`hear` gets the frames of known users; `wake` is called after held ones; `end` ends an invalid peer."""
        self._authenticators = authenticators
        self._connections = connections
        self._monotonic = monotonic
        self._hear, self._wake, self._end = hear, wake, end
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
        again = self._monotonic() >= self._names_at
        if again:
            self._names_at = self._monotonic() + NAMES_S
        if self._authenticators.changed() or again:
            self.judge_again({peer.credentials for peer in self._peers.values() if again or peer.credentials.key})

    def judge_again(self, credentials: Collection[Credentials]) -> None:
        """End the connections with those of the credentials that are valid no longer, and renew the others' rights."""
        for one in {peer.credentials for peer in self._peers.values()}.intersection(credentials):
            self._authenticators.ask(one, functools.partial(self._judged, one))

    def _judged(self, credentials: Credentials, verdict: Verdict) -> None:
        for peer in [peer for peer in self._peers.values() if peer.credentials == credentials]:
            if isinstance(verdict, NotAllowed):
                if not peer.refusal:
                    self._end(peer)
            elif credentials.uid is not None and verdict.user == f"#{credentials.uid}":
                pass  # the directory knows no name now: it may be out of reach
            elif verdict.user != peer.user:
                self._end(peer)
            else:
                peer.given = verdict

    def receive(self, socket: zmq.Socket[bytes], curve: bool, parts: Sequence[zmq.Frame], now: float) -> None:
        """Identify the sender of a message from a socket (`curve`: guarded by CURVE), and pass its frame on."""
        # Names that peers give themselves are refused: who took the name of one who just left would get their frames.
        identity = parts[0].bytes
        if len(identity) != 5 or identity[0] != 0:
            self._connections.end(_connection(parts[-1]))
        if len(parts) != 2 or len(identity) != 5 or identity[0] != 0:
            return
        credentials = self._credentials(curve, parts[1])
        if credentials is None:
            return
        peer = self._peers.get((id(socket), identity))
        if peer is None:
            self._hold(socket, identity, credentials, parts[1])
        else:
            self._hear(peer, parts[1], now)

    def _hold(self, socket: zmq.Socket[bytes], identity: bytes, credentials: Credentials, frame: zmq.Frame) -> None:
        """Queue frames of a new connection until its user is known."""
        key = (id(socket), identity)
        if self._held_bytes + len(frame) > HELD_BYTES:
            self._connections.end(_connection(frame))
            return
        self._held_bytes += len(frame)
        if (frames := self._held.get(key)) is not None:
            frames.append(frame)
            return
        self._held[key] = [frame]
        self._authenticators.ask(credentials, functools.partial(self._known, socket, identity, credentials))

    def _known(self, socket: zmq.Socket[bytes], identity: bytes, credentials: Credentials, verdict: Verdict) -> None:
        """Process the queued frames of a connection whose user is now known, or is refused."""
        frames = self._held.pop((id(socket), identity), ())
        self._held_bytes -= sum(map(len, frames))
        if not frames:
            return
        if isinstance(verdict, NotAllowed) and credentials.key:
            self._connections.end(_connection(frames[0]))
            return
        peer = self._meet(socket, identity, credentials, verdict, frames[0])
        for frame in frames:
            self._hear(peer, frame, self._monotonic())
        self._wake()

    def _meet(
        self, socket: zmq.Socket[bytes], identity: bytes, credentials: Credentials, verdict: Verdict, frame: zmq.Frame
    ) -> Peer:
        """Add a peer; to one whose UNIX id is refused the reason is told."""
        if isinstance(verdict, Identity):
            peer = Peer(socket, identity, verdict.user, credentials, verdict)
        else:
            peer = Peer(socket, identity, f"#{credentials.uid}", credentials, Identity("", ()), refusal=str(verdict))
        peer.descriptor = _connection(frame)
        self._peers[id(socket), identity] = peer
        connection = self._connections.find(peer.descriptor, peer.user)
        if connection is not None:
            connection.peer, peer.surplus = peer, connection.surplus
        return peer

    @staticmethod
    def _credentials(curve: bool, frame: zmq.Frame) -> Credentials | None:
        """Return the sender's UNIX id or public key.

        Each source is used only where the other end can't write it: `User-Id` counts under CURVE alone, where the check
        of the handshake set it; elsewhere a peer can put it into its own greeting.
        """
        try:
            if curve:
                key = str(frame.get("User-Id"))
                return Credentials(key=key) if key else None
            uid = uid_of_peer(str(frame.get("Peer-Address")))
            return None if uid is None else Credentials(uid)
        except zmq.ZMQError:
            return None


def _connection(frame: zmq.Frame) -> int:
    """Return the descriptor of the connection that the frame came on."""
    with contextlib.suppress(zmq.ZMQError):
        return int(frame.get("__fd"))
    return -1
