"""Let authenticators judge the handshakes of CURVE connections (ZeroMQ RFC 27).

Knows keys; must not know peers: a connection's user is asked for again with its first frame.
"""

from __future__ import annotations

import asyncio
import functools
import logging

import zmq
from zmq.utils import z85

from jupyter_elastic.scheduler.access.authenticators import Authenticators, Verdict
from jupyter_elastic.types import Credentials, Identity

_ZAP = "inproc://zeromq.zap.01"

log = logging.getLogger(__name__)


class ZapHandler:
    """The handler of all handshakes of a ZeroMQ context. An answer may take its time: others go on meanwhile."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], authenticators: Authenticators) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.bind(_ZAP)
        self._authenticators = authenticators

    def answer_all(self) -> None:
        """Answer the handshakes that have arrived."""
        while not self.socket.closed and int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._answer()

    def _answer(self) -> None:
        """Answer a handshake. No exception may escape, or every later client would hang."""
        sender, _, *parts = self.socket.recv_multipart()
        head = [sender, b"", *(*parts, b"", b"")[:2]]
        try:
            if len(parts) == 7 and parts[5] == b"CURVE":
                key = z85.encode(parts[6])
                self._authenticators.ask(
                    Credentials(key=key.decode("ascii")), functools.partial(self._reply, head, key)
                )
                return
        except Exception:
            log.exception("a CURVE handshake could not be judged")
        self._reply(head, b"", None)

    def _reply(self, head: list[bytes], key: bytes, verdict: Verdict | None) -> None:
        if self.socket.closed:
            return
        asyncio.get_running_loop().call_soon(self.answer_all)  # sending may swallow the signal of the next handshake
        if isinstance(verdict, Identity):
            self.socket.send_multipart([*head, b"200", b"welcome", key, b""])
        else:
            self.socket.send_multipart([*head, b"400", b"this key is not in the table", b"", b""])
