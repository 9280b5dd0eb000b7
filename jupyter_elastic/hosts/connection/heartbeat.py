"""Sends heartbeats to a host agent, and notices that none come from there.

Knows the clock; must not know what else travels over the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from jupyter_elastic.protocol import host_agent_messages as messages
from jupyter_elastic.protocol.host_agent_messages import ToHostAgent


class HeartbeatPeer(Protocol):
    """A host agent at the other end of a connection."""

    lost: str
    """Reason why the host is lost; empty while it isn't."""
    silent_since: float
    """Time of the last message from the host, by `time.monotonic()`."""

    def say(self, message: ToHostAgent) -> None:
        """Send a message, unless the host is lost."""
        ...


async def send_heartbeats(peer: HeartbeatPeer) -> None:
    """Send a heartbeat every `HEARTBEAT_S` seconds, until the host is lost."""
    while not peer.lost:
        peer.say(messages.Heartbeat())
        await asyncio.sleep(messages.HEARTBEAT_S)


async def watch_silence(peer: HeartbeatPeer, lost_s: float, lose: Callable[[str], None]) -> None:
    """Lose the host, with a reason, when nothing has come from it for `lost_s` seconds; return when it is lost."""
    polled = time.monotonic()
    while not peer.lost:
        await asyncio.sleep(messages.HEARTBEAT_S / 2)
        now = time.monotonic()
        late, polled = now - polled > 2 * messages.HEARTBEAT_S, now
        # This process was held up itself: what has come meanwhile is to be read first.
        if not late and now - peer.silent_since > lost_s:
            lose(f"silent for {lost_s:g} s")
