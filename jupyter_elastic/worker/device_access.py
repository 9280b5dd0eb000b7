"""Has a worker admitted to its slot's device, if a slot agent guards the machine's devices."""

from __future__ import annotations

import os
import socket

from jupyter_elastic.protocol.slot_agent_messages import ANSWERS, ASKS, SOCKET, VARIABLE, Enter
from jupyter_elastic.types.errors import ProtocolError

ANSWER_S = 10.0
"""Seconds that the answer may take: a process that ran on the slot before may have to be ended first."""


def enter(ask: Enter) -> str:
    """Send the request, if there is a slot agent; return why it has refused, empty when it hasn't."""
    path = os.environ.get(VARIABLE, SOCKET)
    if not os.path.exists(path):  # noqa: PTH110 - a path may hold what Path refuses
        return ""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
            connected.settimeout(ANSWER_S)
            connected.connect(path)
            connected.sendall(ASKS.encode(ask))
            with connected.makefile("rb") as stream:
                answer = ANSWERS.receive(stream)
    except (OSError, ProtocolError) as problem:
        return f"{path}: {problem}"
    return "it hung up" if answer is None else answer.problem
