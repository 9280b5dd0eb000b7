"""Describes a worker's main thread, and how long it has not moved. The driver requests this when a job is silent.

Knows Python's frames and the files of the frameworks; imports none of them and hooks into nothing. A simulated signal
shows that the thread is still in the same call: its handler runs as soon as the main thread is back in Python.
"""

from __future__ import annotations

import _thread
import faulthandler
import fcntl
import os
import re
import signal
import sys
import sysconfig
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from jupyter_elastic.protocol.worker_messages import StackReport

MARK = signal.SIGRTMAX - 1
"""The signal that is simulated; none is ever sent, so no system call of the cell is interrupted."""
DUMP = signal.SIGRTMAX - 2
"""The signal that has the main thread's stack written in C, also while something there does not let go of Python's
lock. Only a worker that does not answer is sent it."""
MAX_FRAMES, MAX_TEXT, MAX_DUMP = 40, 300, 64 * 1024
_DUMPED = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_LIBRARY = (*{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}, str(Path(__file__).parent.parent))
INSTALLED = ("/site-packages/", "/dist-packages/", "<frozen ", "<string>")  # the last: code made by libraries
_COLLECTIVE = (
    "/horovod/",
    "/torch/distributed/",
    "/torch/nn/parallel/distributed.py",
    "/jupyter_elastic/engines/",
    "/mpi4py/",
)
"""Files in which a thread that was called by the cell waits for others."""
_STRATEGIES = {
    "collective_all_reduce_strategy.py": "MultiWorkerMirroredStrategy",
    "parameter_server_strategy_v2.py": "ParameterServerStrategy",
}
"""TensorFlow's strategies by the file that makes them."""


class StackFrame(NamedTuple):
    """A frame of a stack."""

    file: str
    line: int
    name: str


class StackWatch:
    """Watches the main thread of this process. That thread calls `install`, any other `look`."""

    def __init__(self) -> None:
        self._since: float | None = None
        self.dump = -1
        """The file in memory into which `DUMP` writes; see `dumped`."""

    def install(self) -> None:
        """Install the signal handlers. Call it in each process: a forked one needs a file of its own."""
        signal.signal(MARK, self._moved)
        self.dump = os.memfd_create("stack")
        fcntl.fcntl(self.dump, fcntl.F_SETFL, os.O_APPEND)  # the reader empties the file
        faulthandler.register(DUMP, file=self.dump, all_threads=False)

    def look(self, labels: Mapping[str, str]) -> StackReport:
        """Return the main thread's stack, if it waits for others there, and for how long.

        `labels`: displayed names of other cells' files.
        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
            _thread.interrupt_main(MARK)  # type: ignore[arg-type] # a real-time signal has no name
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        since = self._since  # None: the thread has moved meanwhile
        return msgspec.structs.replace(describe(frame, labels), still_s=0.0 if since is None else now - since)

    def _moved(self, _number: int, _frame: types.FrameType | None) -> None:
        self._since = None


def describe(frame: types.FrameType | None, labels: Mapping[str, str]) -> StackReport:
    """Return a stack as text, from its innermost frame; `where` is the innermost line of the cell itself."""
    walked = traceback.walk_stack(frame) if frame is not None else ()
    return _as_text([StackFrame(one.f_code.co_filename, line, one.f_code.co_name) for one, line in walked], labels)


def dumped(pid: int, descriptor: int, labels: Mapping[str, str]) -> StackReport | None:
    """Return the stack that `DUMP` has written in another process of this user, as `describe` does; None without one.

    The file is emptied. OSError when the process is gone.
    """
    with Path(f"/proc/{pid}/fd/{descriptor}").open("r+b") as file:
        text = file.read(MAX_DUMP).decode(errors="replace")
        file.truncate(0)
    last = text[text.rfind("most recent call first") :]
    stack = [StackFrame(found["file"], int(found["line"]), found["name"]) for found in _DUMPED.finditer(last)]
    return _as_text(stack, labels) if stack else None


def _as_text(frames: Sequence[StackFrame], labels: Mapping[str, str]) -> StackReport:
    own = next((index for index, one in enumerate(frames) if not is_library(one.file)), None)
    stack = tuple(f"{_place(one, labels)} in {one.name}" for one in frames[:MAX_FRAMES])
    held = any(map(_waits, frames[:own]))
    where = _place(frames[own or 0], labels) if frames else ""
    return StackReport(where=where, stack=stack, held=held, forms=_forms(frames[:own]))


def _place(frame: StackFrame, labels: Mapping[str, str]) -> str:
    return f"{labels.get(frame.file, frame.file)[-MAX_TEXT:]}:{frame.line}"


def is_library(file: str) -> bool:
    """Return True if this file is neither the cell's nor a module of the user's."""
    return file.startswith(_LIBRARY) or any(part in file for part in INSTALLED)


def _forms(frames: Sequence[StackFrame]) -> str:
    """Return the strategy made in these frames, if TensorFlow's runtime connects its cluster in the innermost one."""
    connects = bool(frames) and "/tensorflow/python/eager/" in frames[0].file
    made = [_STRATEGIES.get(Path(one.file).name, "") for one in frames if one.name == "__init__"] if connects else []
    return "".join(made[-1:])


def _waits(frame: StackFrame) -> bool:
    """Return True if this frame, below the cell's own, is in a collective.

    The all-reduce of DistributedDataParallel is in the C++ of `backward`, that of Horovod in TensorFlow in an operation
    of a graph: both only count if there is a process group.
    """
    if any(part in frame.file for part in _COLLECTIVE):
        return True
    if frame.name == "_engine_run_backward":
        distributed = sys.modules.get("torch.distributed")
        return distributed is not None and bool(distributed.is_initialized())
    if "/tensorflow/python/eager/" in frame.file:
        hvd = sys.modules.get("horovod.tensorflow")
        return hvd is not None and bool(hvd.is_initialized()) and int(hvd.size()) > 1
    return False
