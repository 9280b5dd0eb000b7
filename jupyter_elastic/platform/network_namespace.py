"""Makes a network for a group of processes: only they reach its loopback interface, and they reach nothing else.

A server that listens on all interfaces without authentication is then unreachable for the machine's other users. Each
network lies in a user namespace of its own, so that no privilege is needed; the processes keep their user. It lives as
long as a process holds it or is in it. Linux only; run as a program this file makes one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET
_SET_FLAGS, _UP = 0x8914, 0x1  # SIOCSIFFLAGS, IFF_UP
_KINDS = {"user": _NEW_USER, "net": _NEW_NET}


class NetworkNamespace:
    """A network that this process holds until `close`."""

    def __init__(self) -> None:
        """Make the network; OSError with the reason if that is forbidden."""
        # The namespace of users is for processes with one thread, so another one makes it.
        program = [sys.executable, "-I", "-S", __file__]
        with subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as maker:  # the end of its standard input ends it
            assert maker.stdout is not None
            assert maker.stderr is not None
            if maker.stdout.readline().strip() != b"made":
                raise OSError(maker.stderr.read().decode(errors="replace").strip() or "its maker has ended")
            self._held = tuple(os.open(f"/proc/{maker.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _KINDS)

    @property
    def paths(self) -> str:
        """Argument of `enter`, in processes of the same user while this one holds the network."""
        return ":".join(f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in self._held)

    def close(self) -> None:
        """Release the network."""
        for descriptor in self._held:
            os.close(descriptor)
        self._held = ()


def enter(paths: str) -> None:
    """Move this process, which must have one thread, into the network at `NetworkNamespace.paths`. OSError if not."""
    with contextlib.ExitStack() as opened:
        found = []
        for path in paths.split(":"):  # open all first: after the first step `/proc` shows the holder no more
            found.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            opened.callback(os.close, found[-1])
        for descriptor, kind in zip(found, _KINDS.values(), strict=True):
            _check(_libc().setns(descriptor, kind))


def forbidden() -> str:
    """Return why no network can be made here; empty when one can."""
    try:
        NetworkNamespace().close()
    except OSError as problem:
        return str(problem)
    return ""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _make() -> None:
    user, group = os.getuid(), os.getgid()
    _check(_libc().unshare(_NEW_USER | _NEW_NET))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123 - nothing but this is imported
            file.write(text)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", _UP))


if __name__ == "__main__":
    try:
        _make()
    except OSError as problem:
        sys.exit(f"no user and network namespace can be made here: {problem}")
    sys.stdout.write("made\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.read()
