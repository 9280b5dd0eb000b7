"""A hand out of a warm parent: by itself each would import for a quarter of a second, while a cell waits.

The process that a driver's command has started asks the parent for a hand, passes its environment, folder, stdin,
stdout and stderr on, and ends with it. It imports next to nothing, since it is what is waited for. There is one parent
for each user, interpreter and pool of a host; the first hand starts it (`start`), and it ends as other forkservers do.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import zlib

OPTION = "--warm"
"""On the command line of a hand that may come from a parent: nothing but the hand has to end with the command."""
READY = b"."
"""A hand's first word to the process that is to pass its descriptors on."""
WAIT_S = 1.0
"""So long a parent may take to give a hand; who has waited in vain becomes one itself."""
FORK = b"\x01\x00\x00\x15\x82\xa4type\xa4Fork\xa8kept_for\xc0"
"""`protocol.forkserver`'s request: its module takes longer to import than all of this."""
SIZE = 4
"""Bytes that say how long what follows is."""


def place() -> str:
    """The path of the parent's socket; empty where there can be none, or the user wants none."""
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
    """Be a hand of the parent's until it has ended; its exit code. None when there is no parent that gives one."""
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
    return code[0] if code else 1  # it was killed


def start() -> None:
    """Start the parent for the hands to come, detached; it ends by itself where one lives."""
    import subprocess
    from pathlib import Path

    from jupyter_elastic.forkserver.client import started
    from jupyter_elastic.platform import private_files

    if not (path := place()):
        return
    command = [sys.executable, "-P", "-m", "jupyter_elastic.hand.forkserver", "--socket", path]
    try:
        with private_files.open_private(Path(path).with_suffix(".log"), append=True) as output:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", start_new_session=True
            )
    except OSError:  # a full disk: the next hand takes as long as this one
        return
    started.add(child.pid)  # nothing that a dead worker has left
