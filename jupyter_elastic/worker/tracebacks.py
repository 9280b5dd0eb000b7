"""What is said of an exception that ended a cell: whose it is, its text, its traceback without lines of ours."""

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
"""How long a cell's SIGCHLD handler has to say which death broke a read: its pipe ends a moment before its parent is
told."""
_OURS = str(PACKAGE) + os.sep


def text_of(problem: BaseException, cell: str, labels: Mapping[str, str]) -> str:
    """The traceback from the first line of `cell` on, without lines of ours, with the notebook's names of its cells.

    Of an error of ours for which the cell has no line the message.
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
    """Let the cell's SIGCHLD handler raise what it has to say of what ended the cell; after this it says nothing.

    torch's DataLoader raises in that handler that a child of its was killed, at whatever line runs then: as often as
    not just after the read that this death broke, at the very call of this.
    """
    if callable(signal.getsignal(signal.SIGCHLD)):
        if isinstance(problem, OSError | EOFError):
            time.sleep(DEATH_TOLD_S)
        hear_no_more()


def hear_no_more() -> None:
    """No such handler runs from now on, so that it breaks no report."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def is_echo(problem: BaseException) -> bool:
    """Whether a framework says that another rank is gone: why, that one's own end says."""
    torch, tensorflow = sys.modules.get("torch.distributed"), sys.modules.get("tensorflow.python.framework.errors")
    kinds = [getattr(torch, name, None) for name in ("DistNetworkError", "DistStoreError")]
    kinds += [getattr(tensorflow, name, None) for name in ("UnavailableError", "AbortedError")]
    known = tuple(kind for kind in kinds if kind is not None)
    return isinstance(problem, known) or (type(problem) is RuntimeError and "gloo/transport" in message_of(problem))
