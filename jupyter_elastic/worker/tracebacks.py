"""What is said of an exception that ended a cell: whose it is, its text, its traceback without lines of ours."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping

from jupyter_elastic.platform.python_path import PACKAGE
from jupyter_elastic.types.errors import ElasticError

DEATH_TOLD_S = 1.0
"""How long a cell's SIGCHLD handler has to say which death broke a read: its pipe ends a moment before its parent is
told."""
_OURS = str(PACKAGE) + os.sep


def said(problem: BaseException) -> str:
    """Its message, if it has one: what the cell raises may fail at that too."""
    try:
        return str(problem)
    except Exception as another:
        return f"<its message can't be made: {type(another).__name__}>"


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


def with_deaths_of_children(problem: BaseException) -> BaseException:
    """What ended the cell: what its SIGCHLD handler raises, if it does, else `problem`.

    torch's DataLoader raises in that handler that a child of its was killed, at whatever line runs then: as often as
    not just after the read that this death broke. After this no such handler runs, so that it breaks no report.
    """
    if not callable(signal.getsignal(signal.SIGCHLD)):
        return problem
    try:
        if isinstance(problem, OSError | EOFError):
            time.sleep(DEATH_TOLD_S)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except BaseException as told:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return told
    return problem


def is_echo(problem: BaseException) -> bool:
    """Whether a framework says that another rank is gone: why, that one's own end says."""
    torch, tensorflow = sys.modules.get("torch.distributed"), sys.modules.get("tensorflow.python.framework.errors")
    kinds = [getattr(torch, name, None) for name in ("DistNetworkError", "DistStoreError")]
    kinds += [getattr(tensorflow, name, None) for name in ("UnavailableError", "AbortedError")]
    known = tuple(kind for kind in kinds if kind is not None)
    return isinstance(problem, known) or (type(problem) is RuntimeError and "gloo/transport" in said(problem))
