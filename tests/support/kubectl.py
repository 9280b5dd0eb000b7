"""Stands in for kubectl: `kubectl exec --stdin --namespace=NS POD [--container=C] -- CMD ...` runs CMD on this machine.

As with kubectl, somebody else (the kubelet) starts the command and carries its streams: the command has the pod's
environment and not the caller's, its exit code comes back with a line on stderr, and when kubectl is killed it lives on
with an open stdin. A pod that `$PODS` does not name is refused in kubectl's words.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

END = 0
POD_HAS = ("PATH", "HOME", "PYTHONPATH", "JUPYTER_ELASTIC_DIR", "JUPYTER_ELASTIC_SLOTS")


def install(folder: Path) -> None:
    """Write the command into a folder, which is to stand first in `PATH`."""
    command = folder / "kubectl"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P {__file__} "$@"\n')
    command.chmod(0o755)


def main() -> int:
    at = sys.argv.index("--")
    (verb, *options), command = sys.argv[1:at], sys.argv[at + 1 :]
    names = [word for word in options if not word.startswith("-")]
    if verb != "exec" or "--stdin" not in options or len(names) != 1:
        sys.stderr.write(f"error: {verb} {options} is not known here\n")
        return 1
    if names[0] not in os.environ["PODS"].split():
        sys.stderr.write(f'Error from server (NotFound): pods "{names[0]}" not found\n')
        return 1
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        os.setsid()
        kubelet(theirs, command)
        os._exit(0)
    theirs.close()
    feeding = threading.Thread(target=send_all, args=(ours, 1, lambda: os.read(0, 65536)), daemon=True)
    feeding.start()
    with ours.makefile("rb") as stream:
        while (frame := receive(stream)) is not None:
            number, data = frame
            if number == END:
                if code := int.from_bytes(data, "big"):
                    sys.stderr.write(f"command terminated with exit code {code}\n")
                return code
            os.write(number, data)
    return 1


def kubelet(wire: socket.socket, command: list[str]) -> None:
    """Start the command and carry its streams, as long as somebody is there."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    environment = {name: os.environ[name] for name in POD_HAS if name in os.environ}
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, bufsize=0)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = child.stdout.fileno(), child.stderr.fileno()
    reads: dict[int, Callable[[], bytes]] = {1: lambda: os.read(out, 65536), 2: lambda: os.read(err, 65536)}
    saying = [threading.Thread(target=send_all, args=(wire, number, read)) for number, read in reads.items()]
    for thread in saying:
        thread.start()
    threading.Thread(target=feed, args=(wire, child.stdin), daemon=True).start()
    for thread in saying:
        thread.join()
    send(wire, END, (child.wait() & 0xFF).to_bytes(1, "big"))


def feed(wire: socket.socket, stdin: BinaryIO) -> None:
    """What kubectl's stdin says, and its end; not that kubectl itself is gone."""
    with wire.makefile("rb") as stream:
        while (frame := receive(stream)) is not None:
            if not frame[1]:
                stdin.close()
                return
            stdin.write(frame[1])


_sending = threading.Lock()


def send(wire: socket.socket, number: int, data: bytes) -> None:
    """A frame, unless nobody is there any more."""
    with _sending, contextlib.suppress(OSError):
        wire.sendall(bytes([number]) + len(data).to_bytes(4, "big") + data)


def send_all(wire: socket.socket, number: int, read: Callable[[], bytes]) -> None:
    """All that is read; an empty frame says that it has ended."""
    while data := read():
        send(wire, number, data)
    send(wire, number, b"")


def receive(stream: BinaryIO) -> tuple[int, bytes] | None:
    """A frame; None when nobody is there any more."""
    head = stream.read(5)
    return (head[0], stream.read(int.from_bytes(head[1:], "big"))) if len(head) == 5 else None


if __name__ == "__main__":
    sys.exit(main())
