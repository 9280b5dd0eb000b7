"""The warm parent of a user's host agents on this host: `python -m jupyter_elastic.host_agent.forked_host_agent`."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jupyter_elastic.forkserver import server
from jupyter_elastic.forkserver.fork_client import our_source
from jupyter_elastic.host_agent import facts, host_agent, warm
from jupyter_elastic.platform.lock import Lock

GIVEN_S = 5.0
"""Seconds that a process may take to pass its descriptors on."""
OLD_S = 86_400.0
"""Seconds for which the log of a parent is kept."""
MAX_GIVEN = 16 * 1024 * 1024


def import_ahead(_: Sequence[str]) -> None:
    """Do ahead the work that would slow down the first host agent."""
    our_source()
    facts.versions()
    facts.addresses()  # not the GPUs: NVML is not for a process that forks
    if path := warm.place():
        tidy(Path(path).parent)


def tidy(folder: Path) -> None:
    """Remove the files of parents that ended long ago: each interpreter and pool has its own.

    If such a parent starts at this very moment, another can start beside it; the first then ends when it is idle.
    """
    for path in folder.glob("hands-*.lock"):
        lock = Lock(path)
        with contextlib.suppress(OSError):  # another process does the same
            if time.time() - path.stat().st_mtime > OLD_S and lock.acquire(attempts=1):
                for suffix in (".sock", ".log", ".lock"):
                    path.with_suffix(suffix).unlink(missing_ok=True)
                lock.release()


def prepare() -> Callable[[socket.socket], int]:
    """Return the function that serves a host agent's connection."""
    return serve


def serve(connection: socket.socket) -> int:
    """Be the connected process's host agent, with its descriptors, environment and folder; return the exit code."""
    if server.newest_source() != our_source():
        return 0  # that process becomes a host agent itself, of the package as installed by now
    connection.settimeout(GIVEN_S)
    try:
        connection.sendall(warm.READY)
        size, descriptors, _, _ = socket.recv_fds(connection, warm.SIZE, 3)
        left = int.from_bytes(size, "big")
        if len(descriptors) != 3 or left > MAX_GIVEN:
            return 1
        given = b""
        while len(given) < left:
            piece = connection.recv(left - len(given))
            if not piece:
                return 1
            given += piece
    except OSError:  # the process is gone
        return 1
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    folder, *environment = given.split(b"\0")
    os.environb.clear()
    os.environb.update(dict(entry.split(b"=", 1) for entry in environment))
    with contextlib.suppress(OSError):  # the folder was removed
        os.chdir(folder)
    connection.settimeout(None)
    code = host_agent.serve(until=connection)
    with contextlib.suppress(OSError):  # the process was killed
        connection.sendall(bytes([code]))
    return code


if __name__ == "__main__":
    sys.exit(server.main(import_ahead, prepare, adopts=False, spares=1))
