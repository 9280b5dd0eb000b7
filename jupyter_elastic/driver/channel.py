"""The driver's socket, on which its agent sends orders and it sends reports.

Both belong to one user, which the driver checks by the socket's peer credentials. On connect the driver sends a
snapshot, so nothing is lost when one side was away; the agent says that it took the `ExitReported` by closing the
connection.
"""

from __future__ import annotations

import socket
from pathlib import Path

from jupyter_elastic.jobfiles.attempt_folder import SOCKET_NAME
from jupyter_elastic.protocol.framing import Frames
from jupyter_elastic.types import AnyEffect, Report

ORDERS: Frames[AnyEffect] = Frames(AnyEffect, "orders of the agent")
REPORTS: Frames[Report] = Frames(Report, "reports of the driver")


def listen(runtime: Path) -> socket.socket:
    """The driver's socket, listening; whatever an earlier driver left there is replaced."""
    path = runtime / SOCKET_NAME
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(8)
    return listener
