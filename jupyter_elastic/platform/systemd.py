"""Notifies systemd that the service is ready and lives (sd_notify). Without systemd nothing happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send `READY=1`, `WATCHDOG=1` or another word of sd_notify(3) to the daemon's starter."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    address = "\0" + where[1:] if where.startswith("@") else where  # an abstract socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
        sender.setblocking(False)
        sender.sendto(state.encode(), address)


async def watchdog() -> None:
    """Report that the loop runs, twice in each `WATCHDOG_USEC`, for ever; return at once if no watchdog is set."""
    given = os.environ.get("WATCHDOG_USEC", "")
    if not given.isdecimal() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(int(given) / 2e6)
