"""Where a worker's main thread is, and since when it has not moved: asked by the driver when a job is silent.

Knows Python's frames and the files of the frameworks; imports none of them and hooks into nothing. That a thread still
is in the very same call is known by a simulated signal: its handler runs as soon as the main thread is back in Python.
"""

from __future__ import annotations

import _thread
import signal
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MARK = signal.SIGRTMAX - 1
"""The signal that is simulated; none is ever sent, so no system call of the cell is interrupted."""
MAX_FRAMES, MAX_TEXT = 40, 300
_LIBRARY = (*{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}, str(Path(__file__).parent.parent))
_INSTALLED = ("/site-packages/", "/dist-packages/", "<frozen ", "<string>")  # the last: made by libraries
_COLLECTIVE = (
    "/horovod/",
    "/torch/distributed/",
    "/torch/nn/parallel/distributed.py",
    "/agent/horovod_doors.py",
    "/mpi4py/",
)
"""Files in which a thread that was called by the cell waits for others."""


class Watch:
    """The main thread of this process. `install` is called by itself, `look` by any other thread."""

    def __init__(self) -> None:
        self._since: float | None = None

    def install(self) -> None:
        """Take the signal."""
        signal.signal(MARK, self._moved)

    def look(self, labels: Mapping[str, str]) -> dict[str, Any]:
        """Where it is (`where`, `stack`), whether it waits for others there (`held`), and for how long (`still_s`).

        `labels`: how people call other cells' files.
        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
            _thread.interrupt_main(MARK)  # type: ignore[arg-type] # a real-time signal has no name
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        since = self._since  # None: it has moved meanwhile
        return {**describe(frame, labels), "still_s": 0.0 if since is None else now - since}

    def _moved(self, _number: int, _frame: types.FrameType | None) -> None:
        self._since = None


def describe(frame: types.FrameType | None, labels: Mapping[str, str]) -> dict[str, Any]:
    """A stack in words, from its innermost frame; the place is the cell's own innermost line."""
    frames: list[types.FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    own = next((index for index, one in enumerate(frames) if not _library(one.f_code.co_filename)), None)
    place = frames[own or 0] if frames else None
    stack = [f"{_place(one, labels)} in {one.f_code.co_name}" for one in frames[:MAX_FRAMES]]
    held = any(map(_waits, frames[:own]))
    return {"where": _place(place, labels) if place else "", "stack": stack, "held": held}


def _place(frame: types.FrameType, labels: Mapping[str, str]) -> str:
    file = frame.f_code.co_filename
    return f"{labels.get(file, file)[-MAX_TEXT:]}:{frame.f_lineno}"


def _library(file: str) -> bool:
    return file.startswith(_LIBRARY) or any(part in file for part in _INSTALLED)


def _waits(frame: types.FrameType) -> bool:
    """Whether this frame, below the cell's own, is in a collective.

    The all-reduce of DistributedDataParallel is in the C++ of `backward`, that of Horovod in TensorFlow in an operation
    of a graph: both only count where there is a ring.
    """
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    if any(part in file for part in _COLLECTIVE):
        return True
    if name == "_engine_run_backward":
        distributed = sys.modules.get("torch.distributed")
        return distributed is not None and bool(distributed.is_initialized())
    if "/tensorflow/python/eager/" in file:
        hvd = sys.modules.get("horovod.tensorflow")
        return hvd is not None and bool(hvd.is_initialized()) and int(hvd.size()) > 1
    return False
