"""Serve the daemon's sockets: identify users, receive frames, send answers. No input is trusted.

On a UNIX socket (`ipc://`) the kernel tells which user is at the other end; on an optional TCP socket with CURVE a
table of public keys does. Frames are passed on one by one, with a call after the last one received, so that one
fdatasync serves them all. A peer that does not read gets a bounded queue and delays nobody.
Knows ZeroMQ and asyncio; must not know what a frame means.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Sequence
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

import zmq
from msgspec import Struct
from zmq.utils import z85

from jupyter_elastic.protocol.wire import MAX_FRAME
from jupyter_elastic.scheduler.access.auth import Caller, Guest, Keys, name_of, uid_of_peer
from jupyter_elastic.scheduler.access.users import Users
from jupyter_elastic.scheduler.net.connections import Connections
from jupyter_elastic.scheduler.net.fair_queue import FairQueue
from jupyter_elastic.scheduler.net.rate_limits import Allowance
from jupyter_elastic.types import AgentOrigin

BATCH = 512
"""Maximum number of frames received, and answered, at once."""
TURN_S = 0.002
"""Maximum seconds of receiving, and of answering, at a time on a shared pool, to bound other users' waits."""
OUTBOX = 10_000
"""Maximum number of frames queued for a slow peer, beside the 1000 in its socket; a peer with more is dropped."""
HELD_BYTES = 64 * 1024 * 1024
"""Bytes queued for all peers that are not identified yet; one more frame costs its sender the connection."""
NAMES_S = 60.0
"""Seconds between checks that users still have the names that they connected with."""
OUTBOX_BYTES = 32 * 1024 * 1024
_ZAP = "inproc://zeromq.zap.01"

log = logging.getLogger(__name__)

Sent = Literal["sent", "queued", "gone"]


class CurveKeys(NamedTuple):
    """Configuration of a CURVE socket: the daemon's key pair (Z85) and the table of keys that may connect."""

    public: bytes
    secret: bytes
    keys: Keys


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


class Transport:
    """All sockets of a daemon. In the loop's thread `take` gets every frame; `rest` is called after the last one."""

    def __init__(
        self,
        take: Callable[[Peer, memoryview], None],
        rest: Callable[[], None],
        monotonic: Callable[[], float],
        *,
        connections_by_user: float = inf,
        is_admin: Callable[[str], bool] = lambda _user: True,
        users: Users | None = None,
        is_barred: Callable[[str], bool] = lambda _user: False,
        admit: Callable[[Peer, memoryview], bool] | None = None,
    ) -> None:
        """`admit`, on a shared pool: True if a frame may be queued; otherwise it has sent the answer."""
        self._take = take
        self._rest = rest
        self._monotonic = monotonic
        self._users = users or Users()
        self._held: dict[tuple[int, bytes], list[zmq.Frame]] = {}
        """Frames of connections whose user is not known yet."""
        self._held_bytes = 0
        self._names_at = monotonic() + NAMES_S
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.connections = Connections(
            self._context,
            monotonic,
            by_user=connections_by_user,
            is_admin=is_admin,
            name_of=self._users.known,
            is_barred=is_barred,
            left=self._left,
        )
        self.forgotten: Callable[[Peer], None] = lambda _peer: None
        """Called with each peer that is gone."""
        self._admit = admit
        self._fair_queue: FairQueue[tuple[Peer, memoryview]] = FairQueue()
        self._monitors: list[zmq.Socket[bytes]] = []
        self._sockets: dict[zmq.Socket[bytes], bool] = {}
        """All sockets, with True for those that CURVE guards."""
        self._zap: zmq.Socket[bytes] | None = None
        self._keys: Keys | None = None
        self._peers: dict[tuple[int, bytes], Peer] = {}
        self._lagging: dict[Peer, deque[bytes]] = {}
        """Frames for peers that don't read; most do, and a queue for each would be half of a connection's memory."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pumping = False

    def listen_unix(self, path: str, *, shared: bool = False, group: int | None = None) -> str:
        """Listen on a UNIX socket, and return its endpoint; `shared`: for users of this machine or of `group`."""
        socket = self._socket()
        socket.bind(f"ipc://{path}")
        if shared and group is not None:
            os.chown(path, -1, group)
        Path(path).chmod((0o666 if group is None else 0o660) if shared else 0o600)
        return f"ipc://{path}"

    def listen_tcp(self, endpoint: str, curve: CurveKeys) -> str:
        """Listen on TCP with CURVE, and return the endpoint with its real port. Only keys of the table are admitted."""
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind(_ZAP)
        self._keys = curve.keys
        socket = self._socket()
        self._sockets[socket] = True
        socket.curve_server = 1
        socket.curve_publickey, socket.curve_secretkey = curve.public, curve.secret
        socket.zap_domain = b"jupyter-elastic"
        socket.bind(endpoint)
        return bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    def start(self) -> None:
        """Begin to receive, in the running loop."""
        self._loop = asyncio.get_running_loop()
        for socket in self._sockets:
            self._loop.add_reader(_descriptor(socket), self._pump)
        for monitor in self._monitors:
            self._loop.add_reader(_descriptor(monitor), self._look)
        self._look()
        if self._zap is not None:
            self._loop.add_reader(_descriptor(self._zap), self._answer_zap)
            self._answer_zap()
        self._pump_soon()

    def close(self) -> None:
        """Close all sockets; frames that were not sent yet get a second."""
        if self._loop is not None:
            for socket in [*self._sockets, *self._monitors, *([self._zap] if self._zap else [])]:
                self._loop.remove_reader(_descriptor(socket))
        self._loop = None
        reader = self.connections.close()
        for socket in self._sockets:
            socket.close(linger=1000)
        if self._zap is not None:
            self._zap.close(linger=0)
        self._context.term()
        reader.join()

    def send(self, peer: Peer, frame: bytes) -> Sent:
        """Send a frame, or queue it for a peer that is busy (`queued`)."""
        if peer.gone:
            return "gone"
        outbox = self._lagging.get(peer)
        if outbox is None:
            fate = self._push(peer, frame)
            if fate != "queued":
                return fate
            outbox = self._lagging[peer] = deque()
        if len(outbox) >= OUTBOX or peer.waiting_bytes >= OUTBOX_BYTES:
            self.forget(peer)
            return "gone"
        outbox.append(frame)
        peer.waiting_bytes += len(frame)
        return "queued"

    def flush(self) -> None:
        """Send queued frames to busy peers. To be called every few milliseconds while `lagging`."""
        for peer, outbox in list(self._lagging.items()):
            while outbox and self._push(peer, outbox[0]) == "sent":
                peer.waiting_bytes -= len(outbox.popleft())
            if not outbox:
                self._lagging.pop(peer, None)

    @property
    def lagging(self) -> bool:
        """True if frames wait for a busy peer."""
        return bool(self._lagging)

    def forget(self, peer: Peer) -> None:
        """Treat this peer as gone; if it sends another frame it is a new peer."""
        peer.gone = True
        peer.waiting_bytes = 0
        self._lagging.pop(peer, None)
        self.forgotten(peer)
        self._peers.pop((id(peer.socket), peer.identity), None)

    def hang_up(self, peer: Peer) -> None:
        """End the peer's connection; frames that it has sent and that were not taken yet are lost."""
        peer.hung_up = True
        self.connections.end(peer.descriptor, peer)

    def end_changed(self) -> None:
        """End connections whose user is no longer valid: a removed key, an id under a new name."""
        if self._keys is not None and self._keys.read_again():
            self.judge_again({peer.who for peer in self._peers.values() if isinstance(peer.who, str)})
        if self._monotonic() >= self._names_at:
            self._names_at = self._monotonic() + NAMES_S
            for uid in {peer.who for peer in self._peers.values() if isinstance(peer.who, int)}:
                self._users.ask(uid, functools.partial(self._end_renamed, uid))

    def judge_again(self, keys: Collection[str]) -> None:
        """End the connections of those of the keys that may no longer connect, and renew the others' rights."""
        for peer in [peer for peer in self._peers.values() if peer.who in keys]:
            caller = self._keys.caller(str(peer.who)) if self._keys is not None else None
            if caller is None or name_of(caller) != peer.user:
                self._end(peer)
            else:
                self._allow(peer, caller)

    def _allow(self, peer: Peer, caller: Caller) -> None:
        if self._keys is not None and isinstance(caller, Guest):
            peer.guest, peer.groups = caller, self._keys.groups(str(peer.who))
        else:
            peer.guest, peer.groups = None, ()

    def _end_renamed(self, uid: int, user: str) -> None:
        if user == f"#{uid}":
            return  # the directory knows no name now: it may be out of reach
        for peer in [peer for peer in self._peers.values() if peer.who == uid and peer.user != user]:
            self._end(peer)

    def _end(self, peer: Peer) -> None:
        log.warning("%s is no longer who was let in: the connection is ended", peer.user, extra={"user": peer.user})
        self.hang_up(peer)
        self.forget(peer)

    def prune(self, silent_s: float) -> None:
        """Forget clients without a frame for `silent_s` seconds; one that lives is known again with its next frame."""
        limit = self._monotonic() - silent_s
        for peer in [peer for peer in self._peers.values() if peer.received_at < limit and peer.role == "client"]:
            self.forget(peer)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _socket(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.maxmsgsize = MAX_FRAME  # libzmq ends the connection of whoever sends more
        socket.router_mandatory = True  # a full or lost peer is an error instead of frames lost silently
        # libzmq 4.3.5 ends the process (`Assertion failed: !_io_error`) when a connection whose frames it holds back,
        # because its queue is full, is closed and a heartbeat is due or among them. So no queue is ever full, and no
        # heartbeats are ours; who floods us is hung up on (`admit`).
        socket.rcvhwm = 0
        socket.sndhwm = 1000
        socket.backlog = 1000
        socket.handshake_ivl = 10_000
        socket.tcp_keepalive, socket.tcp_keepalive_idle, socket.tcp_keepalive_intvl = 1, 30, 10
        socket.linger = 0
        self._sockets[socket] = False
        self._monitors.append(self.connections.watch(socket))
        return socket

    def _look(self) -> None:
        """Process new and ended connections; edge-triggered like `_pump`."""
        if self._loop is not None and self.connections.look():
            self._loop.call_soon(self._look)

    def _left(self, peer: Peer) -> None:
        """Forget a client whose connection has ended; an agent may come back, so only its silence makes it gone."""
        if peer.role == "client":
            self.forget(peer)

    def _pump(self) -> None:
        """Receive some of the waiting frames, then answer some, each user in turn.

        The descriptor of a ZeroMQ socket is edge-triggered: after each use check again.
        """
        self._pumping = False
        if self._loop is None:
            return
        try:
            for socket, curve in self._sockets.items():
                self._read(socket, curve)
            if self._fair_queue:
                self._serve()
        finally:
            if self._loop is not None and (self._fair_queue or any(_readable(socket) for socket in self._sockets)):
                self._pump_soon()

    def _read(self, socket: zmq.Socket[bytes], curve: bool) -> None:
        now = self._monotonic()
        for _ in range(BATCH):
            parts = [] if self._fair_queue.full else _next_message(socket)
            if not parts:
                return
            self._receive(socket, curve, parts, now)
            if self._admit is not None and self._monotonic() > now + TURN_S / len(self._sockets):
                return

    def _serve(self) -> None:
        until = inf if self._admit is None else self._monotonic() + TURN_S
        for _ in range(min(BATCH, len(self._fair_queue))):
            self._take(*self._fair_queue.take())
            if self._monotonic() > until:
                break
        self._rest()

    def _pump_soon(self) -> None:
        if self._loop is not None and not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _receive(self, socket: zmq.Socket[bytes], curve: bool, parts: Sequence[zmq.Frame], now: float) -> None:
        # Names that peers give themselves are refused: who took the name of one who just left would get their frames.
        identity = parts[0].bytes
        if len(identity) != 5 or identity[0] != 0:
            self.connections.end(_connection(parts[-1]))
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
            caller = self._keys.caller(who) if self._keys is not None else None
            if caller is None:
                self.connections.end(_connection(parts[1]))
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
            self.connections.end(_connection(frame))
            return
        self._held[key].append(frame)
        self._held_bytes += len(frame)

    def _known(self, socket: zmq.Socket[bytes], identity: bytes, uid: int, user: str) -> None:
        """Process the queued frames of a connection whose user is now known."""
        frames = self._held.pop((id(socket), identity))
        self._held_bytes -= sum(map(len, frames))
        if self._loop is None or not frames:
            return
        peer = self._meet(socket, identity, uid, user, frames[0])
        for frame in frames:
            self._hear(peer, frame, self._monotonic())
        self._pump_soon()

    def _meet(self, socket: zmq.Socket[bytes], identity: bytes, who: int | str, user: str, frame: zmq.Frame) -> Peer:
        peer = Peer(socket, identity, user, who, descriptor=_connection(frame))
        self._peers[id(socket), identity] = peer
        connection = self.connections.find(peer.descriptor, user)
        if connection is not None:
            connection.peer, peer.surplus = peer, connection.surplus
        return peer

    def _hear(self, peer: Peer, frame: zmq.Frame, now: float) -> None:
        if peer.hung_up:
            return
        peer.received_at = now
        said = frame.buffer
        if self._admit is None or self._admit(peer, said):
            self._fair_queue.put(peer.user, (peer, said), len(said))

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

    def _push(self, peer: Peer, frame: bytes) -> Sent:
        try:
            peer.socket.send_multipart((peer.identity, frame), zmq.NOBLOCK)
        except zmq.Again:
            return "queued"
        except zmq.ZMQError:
            self.forget(peer)
            return "gone"
        finally:
            self._pump_soon()  # sending, even in vain, may swallow the signal of a frame that has come meanwhile
        return "sent"

    def _answer_zap(self) -> None:
        """Check handshakes (ZeroMQ RFC 27). No exception may escape, or every later client would hang."""
        while self._zap is not None and _readable(self._zap):
            parts = self._zap.recv_multipart()
            version, request, key, caller = parts[0], parts[1] if len(parts) > 1 else b"", b"", None
            try:
                if len(parts) == 7 and parts[5] == b"CURVE" and self._keys is not None:
                    key = z85.encode(parts[6])
                    caller = self._keys.caller(key.decode("ascii"))
            except Exception:
                log.exception("a CURVE handshake could not be judged")
            if caller is None:
                reply = [version, request, b"400", b"this key is not in the table", b"", b""]
            else:
                reply = [version, request, b"200", b"welcome", key, b""]
            self._zap.send_multipart(reply)


def _next_message(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    """Return the parts of the next message; empty if there is none."""
    try:
        return socket.recv_multipart(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return []


def _connection(frame: zmq.Frame) -> int:
    """Return the descriptor of the connection that the frame came on."""
    with contextlib.suppress(zmq.ZMQError):
        return int(frame.get("__fd"))
    return -1


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(zmq.FD))


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
