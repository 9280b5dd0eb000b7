"""Memory of processes that fork and are forked.

A fork shares its pages with its parent until it writes to them; then each costs a fault and a copy, a few microseconds
apiece and ten times as much on a virtual machine, just when somebody waits. And a fork, like its end, takes the kernel
a step for each page. Knows the kernel's memory calls and nothing of us.
"""

from __future__ import annotations

import ctypes
import sys

import psutil

MOST = 32 * 1024**2
"""Bytes; a process that shares more (one with a framework loaded) keeps sharing: spares must not fill the memory."""
_MADV_POPULATE_WRITE = 23
"""Linux 5.14; an older kernel refuses it, and nothing is lost."""
_MADV_COLLAPSE = 25
"""Linux 6.1; likewise."""
_LARGE = 2 * 1024**2
"""Bytes of a large page on x86-64 and on ARM with pages of 4 KiB."""


def prefault(most: int = MOST) -> int:
    """Take copies of the pages that this process shares with its parent, now; their bytes, 0 when nothing was done."""
    shared = _in_use("shared_dirty")
    size = sum(end - start for start, end in shared)
    if size > most or not all(_advise(start, end, _MADV_POPULATE_WRITE) for start, end in shared):
        return 0
    return size


def enlarge() -> int:
    """Hold this process's memory in large pages, ahead of many forks; the bytes that now are, 0 where it can't be done.

    A fork with torch takes half as long then, as does its end. A page that a fork writes to is copied alone as ever.
    """
    size = 0
    for start, end in _in_use("private_dirty"):
        for at in range(-(-start // _LARGE) * _LARGE, end - _LARGE + 1, _LARGE):
            size += _LARGE * _advise(at, at + _LARGE, _MADV_COLLAPSE)
    return size


def _in_use(kind: str) -> list[tuple[int, int]]:
    """Where our writable memory is, (start, end), if at least half of a part is of this kind.

    Of a part that is mostly untouched (a library's reserve) both calls would make memory.
    """
    if sys.platform != "linux":
        return []
    found = []
    for part in psutil.Process().memory_maps(grouped=False):
        if part.perms == "rw-p" and 2 * getattr(part, kind) >= part.size > 0:
            start, end = part.addr.split("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def _advise(start: int, end: int, advice: int) -> bool:
    """Whether the kernel has taken the advice."""
    return not ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)
