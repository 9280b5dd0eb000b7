"""Memory of a forked process that waits to be needed.

A fork shares its pages with its parent until it writes to them; then each costs a fault and a copy, a few microseconds
apiece and ten times as much on a virtual machine, just when somebody waits. Knows the kernel's memory calls and nothing
of us.
"""

from __future__ import annotations

import ctypes
import sys

import psutil

MOST = 32 * 1024**2
"""Bytes; a process that shares more (one with a framework loaded) keeps sharing: spares must not fill the memory."""
_MADV_POPULATE_WRITE = 23
"""Linux 5.14; an older kernel refuses it, and nothing is lost."""


def prefault(most: int = MOST) -> int:
    """Take copies of the pages that this process shares with its parent, now; their bytes, 0 when nothing was done."""
    if sys.platform != "linux":
        return 0
    shared = [
        part
        for part in psutil.Process().memory_maps(grouped=False)
        # Of a part that is mostly untouched (a library's reserve) the populating would make memory.
        if part.perms == "rw-p" and 2 * part.shared_dirty >= part.size > 0
    ]
    size = sum(part.size for part in shared)
    if size > most:
        return 0
    madvise = ctypes.CDLL(None).madvise
    for part in shared:
        start, end = (int(edge, 16) for edge in part.addr.split("-"))
        if madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_POPULATE_WRITE):
            return 0
    return size
