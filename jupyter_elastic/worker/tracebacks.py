"""Reports the exception that ended a cell: its text, and its traceback without lines of this package."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping

from jupyter_elastic.platform.python_path import PACKAGE
from jupyter_elastic.types.errors import ElasticError, message_of

DEATH_TOLD_S = 1.0
"""Seconds for a cell's SIGCHLD handler to raise the death that broke a read: the pipe ends before the signal comes."""
_OURS = str(PACKAGE) + os.sep


def text_of(problem: BaseException, cell: str, labels: Mapping[str, str]) -> str:
    """Return the traceback from the first line of `cell` on, without lines of ours, with the notebook's cell names.

    For an error of ours without a line of the cell, return its message.
    """
    formatted = traceback.TracebackException.from_exception(problem)
    left = formatted.stack and _theirs(formatted.stack, cell, labels)
    if isinstance(problem, ElasticError) and not left:
        return f"{type(problem).__name__}: {problem}\n"
    todo, seen = [formatted] if left else [], set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        stack = _theirs(one.stack, cell, labels)
        one.stack = traceback.StackSummary.from_list(stack) if stack else None  # type: ignore[assignment]
        todo += [other for other in (one.__cause__, one.__context__, *(one.exceptions or ())) if other is not None]
    return "".join(formatted.format())


def _theirs(stack: traceback.StackSummary, cell: str, labels: Mapping[str, str]) -> list[traceback.FrameSummary]:
    frames = [frame for frame in stack if not frame.filename.startswith(_OURS)]
    first = next((index for index, frame in enumerate(frames) if frame.filename == cell), 0)
    for frame in frames:
        frame.filename = labels.get(frame.filename, frame.filename)
    return frames[first:]


def hear_of_children(problem: BaseException) -> None:
    """Let the cell's SIGCHLD handler raise its explanation of the error that ended the cell; switch it off then.

    torch's DataLoader raises in that handler that a child of its was killed, at whatever line runs then: as often as
    not just after the read that this death broke, at the very call of this.
    """
    if callable(signal.getsignal(signal.SIGCHLD)):
        if isinstance(problem, OSError | EOFError):
            time.sleep(DEATH_TOLD_S)
        hear_no_more()


def hear_no_more() -> None:
    """Switch off the SIGCHLD handler, so that it breaks no report."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def is_echo(problem: BaseException) -> bool:
    """Return True if a framework reports that another rank is gone: the cause is that rank's own end."""
    torch, tensorflow = sys.modules.get("torch.distributed"), sys.modules.get("tensorflow.python.framework.errors")
    kinds = [getattr(torch, name, None) for name in ("DistNetworkError", "DistStoreError")]
    kinds += [getattr(tensorflow, name, None) for name in ("UnavailableError", "AbortedError")]
    known = tuple(kind for kind in kinds if kind is not None)
    return isinstance(problem, known) or (type(problem) is RuntimeError and "gloo/transport" in message_of(problem))
