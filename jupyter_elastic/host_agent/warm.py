"""Forks a host agent from a warm parent: importing would take a quarter of a second, while a cell waits.

The process that a driver's command has started requests a host agent from the parent, passes its environment, folder
and standard streams on, and ends with the host agent. A cell waits, so it imports next to nothing. There is one parent
for each user, interpreter and pool of a host; the first host agent starts it (`start`); it ends as forkservers do.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import zlib

OPTION = "--warm"
"""Option of a host agent that a warm parent may fork: nothing but the host agent has to end with the command."""
READY = b"."
"""First byte from a host agent to the process that is to pass its descriptors on."""
WAIT_S = 1.0
"""Seconds that a parent may take to fork a host agent; then the waiting process becomes one itself."""
FORK = b"\x01\x00\x00\x15\x82\xa4type\xa4Fork\xa8kept_for\xc0"
"""A request of `protocol.forkserver_messages`, encoded: importing that module takes longer than all of this."""
SIZE = 4
"""Width of the length prefix in bytes."""


def place() -> str:
    """Return the path of the parent's socket; empty if there can be none, or the user wants none."""
    folder = f"/tmp/jupyter-elastic-{os.getuid()}"  # noqa: S108 - owner and mode are checked
    try:
        info = os.lstat(folder)
    except OSError:
        return ""
    private = stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077
    if not private or os.environ.get("JUPYTER_ELASTIC_WARM") == "0":
        return ""
    what = repr([sys.executable, sys.path, os.environ.get("JUPYTER_ELASTIC_DIR")])
    return f"{folder}/hands-{zlib.crc32(what.encode()):08x}.sock"


def run() -> int | None:
    """Wait for a host agent forked from the parent to end; return its exit code, or None if there is no such parent."""
    parent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # open to the end: the parent stays as long
    ours, theirs = socket.socketpair()
    for one in (parent, ours):
        one.settimeout(WAIT_S)
    try:
        parent.connect(place())
        with theirs:
            socket.send_fds(parent, [FORK], [theirs.fileno()])
        if ours.recv(1) != READY:
            return None
    except OSError:
        return None
    finally:
        theirs.close()
    ours.settimeout(None)
    environment = (name + b"=" + value for name, value in os.environb.items())
    given = b"\0".join([os.getcwdb(), *environment])  # noqa: PTH109 - without pathlib, which takes long to import
    try:
        socket.send_fds(ours, [len(given).to_bytes(SIZE, "big")], [0, 1, 2])
        ours.sendall(given)
        code = ours.recv(1)
    except OSError:
        return 1
    return code[0] if code else 1  # the host agent was killed


def start() -> None:
    """Start the parent of later host agents, detached; it ends itself if another one lives."""
    import subprocess
    from pathlib import Path

    from jupyter_elastic.forkserver.fork_client import started
    from jupyter_elastic.platform import private_files

    if not (path := place()):
        return
    command = [sys.executable, "-P", "-m", "jupyter_elastic.host_agent.forked_host_agent", "--socket", path]
    try:
        with private_files.open_private(Path(path).with_suffix(".log"), append=True) as output:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", start_new_session=True
            )
    except OSError:  # a full disk: the next host agent takes as long as this one
        return
    started.add(child.pid)  # the parent is not a dead worker's leftover
