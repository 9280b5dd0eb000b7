"""Serve the daemon's sockets: receive frames, send answers. No input is trusted.

On a UNIX socket (`ipc://`) the kernel tells which user is at the other end; on an optional TCP socket CURVE proves
which public key is (`peers`, `zap`). Frames are passed on one by one, with a call after the last one received,
so that one fdatasync serves them all. A peer that does not read gets a bounded queue and delays nobody.
Knows ZeroMQ and asyncio; must not know what a frame means.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

import zmq

from jupyter_elastic.protocol.wire import MAX_FRAME
from jupyter_elastic.scheduler.access.authenticators import Authenticators, make
from jupyter_elastic.scheduler.net.connections import Connections
from jupyter_elastic.scheduler.net.fair_queue import FairQueue
from jupyter_elastic.scheduler.net.peers import Peer, Peers
from jupyter_elastic.scheduler.net.zap import ZapHandler
from jupyter_elastic.types import AuthenticatorContext

BATCH = 512
"""Maximum number of frames received, and answered, at once."""
TURN_S = 0.002
"""Maximum seconds of receiving, and of answering, at a time on a shared pool, to bound other users' waits."""
OUTBOX = 10_000
"""Maximum number of frames queued for a slow peer, beside the 1000 in its socket; a peer with more is dropped."""
OUTBOX_BYTES = 32 * 1024 * 1024

log = logging.getLogger(__name__)

Sent = Literal["sent", "queued", "gone"]


class CurveKeys(NamedTuple):
    """The daemon's key pair for a CURVE socket (Z85)."""

    public: bytes
    secret: bytes


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
        authenticators: Authenticators | None = None,
        is_barred: Callable[[str], bool] = lambda _user: False,
        admit: Callable[[Peer, memoryview], bool] | None = None,
    ) -> None:
        """`admit`, on a shared pool: True if a frame may be queued; otherwise it has sent the answer."""
        self._take = take
        self._rest = rest
        self._monotonic = monotonic
        self._authenticators = authenticators or Authenticators(make(["unix"], AuthenticatorContext()))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.connections = Connections(
            self._context,
            monotonic,
            by_user=connections_by_user,
            is_admin=is_admin,
            name_of=self._authenticators.known,
            is_barred=is_barred,
            left=self._left,
        )
        self.peers = Peers(
            self._authenticators, self.connections, monotonic, hear=self._hear, wake=self._pump_soon, end=self._end
        )
        self.forgotten: Callable[[Peer], None] = lambda _peer: None
        """Called with each peer that is gone."""
        self._admit = admit
        self._fair_queue: FairQueue[tuple[Peer, memoryview]] = FairQueue()
        self._monitors: list[zmq.Socket[bytes]] = []
        self._sockets: dict[zmq.Socket[bytes], bool] = {}
        """All sockets, with True for those that CURVE guards."""
        self._zap: ZapHandler | None = None
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
        """Listen on TCP with CURVE, and return the endpoint with its real port."""
        self._zap = ZapHandler(self._context, self._authenticators)
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
            self._loop.add_reader(_descriptor(self._zap.socket), self._zap.answer_all)
            self._zap.answer_all()
        self._pump_soon()

    def close(self) -> None:
        """Close all sockets; frames that were not sent yet get a second."""
        if self._loop is not None:
            for socket in [*self._sockets, *self._monitors, *([self._zap.socket] if self._zap else [])]:
                self._loop.remove_reader(_descriptor(socket))
        self._loop = None
        self.peers.close()
        reader = self.connections.close()
        for socket in self._sockets:
            socket.close(linger=1000)
        if self._zap is not None:
            self._zap.socket.close(linger=0)
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
        self.peers.remove(peer)

    def hang_up(self, peer: Peer) -> None:
        """End the peer's connection; frames that it has sent and that were not taken yet are lost."""
        peer.hung_up = True
        self.connections.end(peer.descriptor, peer)

    def _end(self, peer: Peer) -> None:
        log.warning("%s is no longer who was let in: the connection is ended", peer.user, extra={"user": peer.user})
        self.hang_up(peer)
        self.forget(peer)

    def prune(self, silent_s: float) -> None:
        """Forget clients without a frame for `silent_s` seconds; one that lives is known again with its next frame."""
        for peer in self.peers.silent_clients(self._monotonic() - silent_s):
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
            self.peers.receive(socket, curve, parts, now)
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

    def _hear(self, peer: Peer, frame: zmq.Frame, now: float) -> None:
        if peer.hung_up:
            return
        peer.received_at = now
        said = frame.buffer
        if self._admit is None or self._admit(peer, said):
            self._fair_queue.put(peer.user, (peer, said), len(said))

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


def _next_message(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    """Return the parts of the next message; empty if there is none."""
    try:
        return socket.recv_multipart(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return []


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(zmq.FD))


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
