"""Has the kernel kill processes at a time, or when another one is gone: also stopped ones, and those that hold the GIL.

A process that was stopped (SIGSTOP) can't keep time, and a thread of a worker gets no turn while compiled code holds
the GIL. The kernel's timer sends SIGKILL all the same, and so does a FIFO whose last writer is gone. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import signal
from pathlib import Path

_CLOCK_MONOTONIC = 1  # that of time.monotonic()
_TIMER_ABSTIME = 1
_SIGEV_SIGNAL = 0


class _Sigevent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "timer_create") else ctypes.CDLL("librt.so.1", use_errno=True)  # glibc before 2.34


class KillTimer:
    """A kernel timer that kills this process at its time. A forked child does not inherit it."""

    def __init__(self) -> None:
        """Create the timer; OSError if the kernel offers none."""
        self._timer = ctypes.c_void_p()
        event = _Sigevent(signo=signal.SIGKILL, notify=_SIGEV_SIGNAL)
        _check(_libc().timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)))

    def set(self, at: float) -> None:
        """Set the time of `time.monotonic()` at which to kill; a past time kills at once."""
        seconds, rest = divmod(max(at, 0.001), 1.0)
        when = _Itimerspec(value=_Timespec(int(seconds), int(rest * 1e9)))
        _check(_libc().timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(when), None))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"a timer of the kernel: {os.strerror(number)}")


def make_fifo(path: Path) -> None:
    """Make a FIFO whose one writer is this process, for as long as it lives."""
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    os.open(path, os.O_RDWR | os.O_CLOEXEC)  # never closed but by the process's end


def end_with_writer(path: str) -> int:
    """Have the kernel kill this process's group as soon as the FIFO's writer is gone. The group must be its own.

    Returns the descriptor for `outlive_writer`.
    """
    fifo = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(fifo, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fifo, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(fifo, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):  # the writer lives, and writes nothing
        os.read(fifo, 1)
        os.kill(os.getpid(), signal.SIGKILL)  # it was gone before
    return fifo


def outlive_writer(fifo: int) -> None:
    """Undo `end_with_writer`, also for processes that this one has forked since."""
    fcntl.fcntl(fifo, fcntl.F_SETFL, os.O_NONBLOCK)
    os.close(fifo)
