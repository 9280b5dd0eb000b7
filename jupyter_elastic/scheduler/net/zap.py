"""Check the handshakes of CURVE connections against the table of keys (ZeroMQ RFC 27).

Knows keys; must not know peers: a connection's user is looked up with its first frame.
"""

from __future__ import annotations

import logging

import zmq
from zmq.utils import z85

from jupyter_elastic.scheduler.access.auth import Keys

_ZAP = "inproc://zeromq.zap.01"

log = logging.getLogger(__name__)


class ZapHandler:
    """The handler of all handshakes of a ZeroMQ context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.bind(_ZAP)
        self._keys = keys

    def answer(self) -> None:
        """Answer a handshake that has arrived. No exception may escape, or every later client would hang."""
        parts = self.socket.recv_multipart()
        version, request, key, caller = parts[0], parts[1] if len(parts) > 1 else b"", b"", None
        try:
            if len(parts) == 7 and parts[5] == b"CURVE":
                key = z85.encode(parts[6])
                caller = self._keys.caller(key.decode("ascii"))
        except Exception:
            log.exception("a CURVE handshake could not be judged")
        if caller is None:
            reply = [version, request, b"400", b"this key is not in the table", b"", b""]
        else:
            reply = [version, request, b"200", b"welcome", key, b""]
        self.socket.send_multipart(reply)
