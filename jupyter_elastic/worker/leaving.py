"""Ends a worker as `python` ends: everything that the cell left open is finalized, flushed and closed.

The interpreter's own end is not awaited: frameworks that were loaded before the fork may hang or crash in it. Knows the
interpreter; must not know the driver.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import io
import logging
import os
import signal
import sys
import types
import weakref
from typing import Any, NoReturn

from jupyter_elastic.worker.display_recorder import recorder
from jupyter_elastic.worker.stacks import INSTALLED, is_library

LIMIT_S, LAST_S = 5.0, 1.0
"""Seconds that the end of a cell's objects may take, and that closing its files may take after that."""
_CLOSES = frozenset({"zipfile", "tempfile", "shelve", "dbm"})
"""Modules with objects that are no files and write at their end, by `__del__`."""

_process = 0
_code = 0
_before: frozenset[str] = frozenset()


def install() -> None:
    """Let this process end as described above, whenever Python ends it."""
    global _process, _before
    _process, _before = os.getpid(), frozenset(sys.modules)
    # What the cell registers is called before, for it comes later; what the forkserver has registered is not called,
    # but for what it registered on behalf of everybody who will use these modules.
    atexit.register(_finish)
    processes = getattr(sys.modules.get("multiprocessing.util"), "_exit_function", None)
    for handler in filter(None, (logging.shutdown, weakref.finalize._exitfunc, processes)):  # type: ignore[attr-defined]
        atexit.unregister(handler)
        atexit.register(handler)


def leave(code: int) -> NoReturn:
    """End this process now as Python would, but without waiting for threads."""
    global _code
    _code = code
    if os.getpid() == _process:
        _limit()
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()  # `_finish` is the last
    _finish()


def _finish() -> NoReturn:
    """Do all that comes after the functions of `atexit`, and exit."""
    if os.getpid() == _process:  # else a child of the cell, which has copies of the open files
        # `atexit` holds the functions that it has called.
        for step in (_limit, recorder.flush, atexit._clear, _finalize, lambda: ctypes.CDLL(None).fflush(None)):
            with contextlib.suppress(BaseException):
                step()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(_code)


@functools.cache
def _limit() -> None:
    """End the process after the limit, whatever it does then; no signal but SIGKILL ends it before."""

    def over(_: int, frame: types.FrameType | None) -> NoReturn:
        where = f", in {frame.f_code.co_name}, line {frame.f_lineno}" if frame is not None else ""
        note = f"note: the end of the cell's objects takes longer than {LIMIT_S:g} s and is cut off{where}\n"
        os.write(2, note.encode())
        signal.signal(signal.SIGALRM, lambda *_: os._exit(_code))
        signal.setitimer(signal.ITIMER_REAL, LAST_S)
        _close_files()
        os._exit(_code)

    with contextlib.suppress(ValueError):  # not on the main thread: the driver's patience is the limit
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, over)
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)


def _finalize() -> None:
    """Drop the names of the cell and of its own modules, as Python does, and close what is open after that."""
    held = _open_files()  # a cycle would be collected with the file closed before what is to be written to it
    own = {
        name
        for name, module in list(sys.modules.items())
        if name == "__main__" or not (name in _before or is_library(getattr(module, "__file__", None) or INSTALLED[0]))
    }
    for name in own:
        del sys.modules[name]
    gc.collect()
    for namespace in gc.get_objects():  # of those that something holds the data: what finalizes it may call the rest
        if type(namespace) is dict and isinstance(of := namespace.get("__name__"), str) and of in own:
            for key, value in list(namespace.items()):
                if gc.is_tracked(value) and not isinstance(value, (types.ModuleType, types.FunctionType, type)):
                    namespace[key] = None
    gc.collect()
    _close_files()
    del held
    gc.collect()


def _close_files() -> None:
    files = sorted(_open_files(), key=_depth)
    for act in ("flush", "close"):
        for file in files:
            with contextlib.suppress(BaseException):
                getattr(file, act)()


def _open_files() -> list[Any]:
    return [one for one in gc.get_objects() if _writes(one)]


def _writes(one: Any) -> bool:
    kind = type(one)
    if not issubclass(kind, io.IOBase):
        return str(kind.__module__).partition(".")[0] in _CLOSES and hasattr(kind, "__del__") and hasattr(kind, "close")
    with contextlib.suppress(BaseException):
        if one.closed or not one.writable():
            return False
        with contextlib.suppress(OSError):  # the file writes to no descriptor
            return bool(one.fileno() > 2)
        return True
    return False


def _depth(file: Any) -> int:
    """Return the file's position in the order of closing: a file that writes to another one comes before it."""
    if isinstance(file, io.TextIOBase):
        return 0
    return 3 if isinstance(file, io.FileIO) else 2 if isinstance(file, io.BufferedWriter | io.BufferedRandom) else 1
