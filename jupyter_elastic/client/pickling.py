"""Pickles functions, arguments and results between submitting processes and workers.

Every pickle is made for, and by, processes of one user alone. An error names the object that can't travel.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import linecache
import math
import pickle
import re
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
from cloudpickle import cloudpickle

from jupyter_elastic.jobfiles import call_files as files
from jupyter_elastic.jobfiles import code_by_value
from jupyter_elastic.jobfiles.call_files import Body, CallResult, Piece, Raised, ResultKind
from jupyter_elastic.jobfiles.names_used import globals_read
from jupyter_elastic.jobfiles.payload import ClassUnpickler
from jupyter_elastic.types.errors import BadRequest, ElasticError, JobFailed, PackagingError, described

_FRAME = re.compile(r'  File "(.*)", line (\d+), in ')
_APART = 64 * 1024
"""Bytes from which a piece of a pickle is kept separately: an array, a text, a long list's part as pickle writes it."""
_PLAIN = (int, float, str, bytes, bool, types.NoneType)


_pieces: weakref.WeakValueDictionary[bytes, Piece] = weakref.WeakValueDictionary()
"""Pieces of all waiting calls. Each submit pickles its values, which may have changed, and copies the changes."""


class _Parts:
    """A file for a pickle that keeps large pieces separately."""

    def __init__(self, most: float) -> None:
        self._parts: list[bytes | Piece] = []
        self._most, self._size = most, 0

    def write(self, data: Any) -> None:
        with memoryview(data) as view:
            self._size += view.nbytes
            if self._size > self._most:
                raise PackagingError(
                    f"the arguments are over {files.LARGEST // 1024**2} MiB: write them to a file, and give the "
                    "file's name"
                )
            if view.nbytes < _APART:
                self._parts.append(bytes(view))
                return
            piece = _pieces.get(hashlib.sha256(view).digest())
            if piece is None:
                copied = bytes(view)  # its digest is asked again: another thread may have changed what was pickled
                digest = hashlib.sha256(copied).digest()
                piece = _pieces.setdefault(digest, Piece(copied, digest))
            self._parts.append(piece)

    @property
    def body(self) -> Body:
        """The written pickle."""
        if any(isinstance(part, Piece) for part in self._parts):
            return tuple(self._parts)
        return b"".join(part for part in self._parts if isinstance(part, bytes))


def _dumps(value: Any, most: float = math.inf) -> Body:
    parts = _Parts(most)
    code_by_value.Pickler(parts).dump(value)
    return parts.body


class RemoteTraceback(Exception):
    """The worker's traceback of an exception; `__cause__` of that exception here, or of its first cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Reader(ClassUnpickler):
    """An unpickler that leaves this process's classes unchanged; cloudpickle would set all their attributes anew."""

    def find_class(self, module: str, name: str, /) -> Any:
        found = super().find_class(module, name)
        return self._set_state if found is cloudpickle._class_setstate else found

    def _set_state(self, kind: Any, state: Any) -> Any:
        return kind if any(kind is one for one in self.here) else cloudpickle._class_setstate(kind, state)


def loads(data: bytes) -> Any:
    """Unpickle data that this user's own worker has written into a private folder."""
    if b"cloudpickle" not in data:  # then no class is in it by value: the usual result, a thousand times a second
        return pickle.loads(data)  # noqa: S301 - see the module
    reader = _Reader(io.BytesIO(data))
    try:
        return reader.load()
    finally:
        reader.memo.clear()  # it holds the reader, and what was read, in a ring


def outcome(result: CallResult) -> tuple[BaseException | None, Any]:
    """Return the exception or the value of a call, as its worker has left it.

    Unpickling may run anything, `sys.exit` too, mostly in the one thread that reads all results: only this call fails.
    """
    try:
        if result.kind == ResultKind.RAISED:
            return _exception(result.raised), None
        if result.kind == ResultKind.JSON:
            return None, msgspec.json.decode(result.body)
        return None, loads(result.body)
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        failed = ElasticError(
            f"the result can't be read here: {described(problem)}; is a module missing in this process?"
        )
        failed.__cause__ = problem
        return failed, None


def _exception(found: Raised) -> BaseException:
    text = _with_source(found.traceback)
    if found.pickled:
        with contextlib.suppress(BaseException):
            problem = loads(found.pickled)
            if isinstance(problem, BaseException):
                first = problem
                for _ in range(100):  # limit for a chain of causes, which may be a ring
                    if first.__cause__ is None:
                        first.__cause__ = RemoteTraceback(text)
                        break
                    first = first.__cause__
                if isinstance(problem, StopIteration):  # asyncio's futures take none, and would never be done
                    told = RuntimeError(f"the function raised {type(problem).__name__}")
                    told.__cause__ = problem
                    return told
                return problem
    return JobFailed(text or f"{found.type}: {found.message}")


def _with_source(traceback: str) -> str:
    """Add the source lines of cells to a worker's traceback; only the kernel that ran the cells knows them."""
    lines = traceback.splitlines()
    found = []
    for line, following in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        found.append(line)
        if (frame := _FRAME.match(line)) and not following.startswith("    "):
            found += [f"    {source}"] if (source := linecache.getline(frame[1], int(frame[2])).strip()) else []
    return "\n".join(found)


def pickled_function(fn: Callable[..., Any]) -> Body:
    """Pickle a function, with the outer names that it reads. PackagingError names what can't travel."""
    if not callable(fn):
        raise BadRequest(f"a {type(fn).__name__} can't be called; give a function and its arguments: submit(f, x)")
    name = getattr(fn, "__qualname__", type(fn).__name__)
    try:
        return _dumps(fn)
    except Exception as problem:
        read = _around(fn)
        culprit = next((f"`{name}` reads `{key}`, which" for key, value in read.items() if not _can_travel(value)), "")
        raise PackagingError(
            f"{culprit or f'`{name}`'} can't travel to the pool: {_why(problem)}. Make it inside the function."
        ) from problem


def _around(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the outer variables that a function reads, and the object that it is a method of."""
    found: dict[str, Any] = {}
    if isinstance(fn, functools.partial):
        found = {f"argument {number}": value for number, value in enumerate(fn.args, 1)} | dict(fn.keywords)
        return found | _around(fn.func)
    if isinstance(fn, types.MethodType):
        return {"self": fn.__self__}
    if isinstance(fn, types.FunctionType):
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # not set yet
                found[name] = cell.cell_contents
        found |= {name: fn.__globals__[name] for name in globals_read(fn.__code__) if name in fn.__globals__}
    return found


def pickled_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Body:
    """Pickle a call's arguments. PackagingError names the one that can't travel, or says that they are too large."""
    given = (args, kwargs)
    if all(type(value) in _PLAIN for value in (*args, *kwargs.values())):
        data = pickle.dumps(given, pickle.HIGHEST_PROTOCOL)
        if len(data) < _APART:
            return data
    try:
        return _dumps(given, files.LARGEST)
    except PackagingError:
        raise
    except Exception as problem:
        named = {**{f"argument {number}": value for number, value in enumerate(args, 1)}, **kwargs}
        culprit = next((name for name, value in named.items() if not _can_travel(value)), "an argument")
        kind = type(named.get(culprit)).__name__
        raise PackagingError(
            f"{culprit} ({kind}) can't travel to the pool: {_why(problem)}. Make it inside the function."
        ) from problem


def pickled(value: Any, what: str) -> Body:
    """Pickle a value; `what` is its name in an error."""
    try:
        return _dumps(value, files.LARGEST)
    except PackagingError:
        raise
    except Exception as problem:
        raise PackagingError(f"{what} can't travel to the pool: {_why(problem)}") from problem


def _can_travel(value: Any) -> bool:
    try:
        code_by_value.dumps(value)
    except Exception:
        return False
    return True


def _why(problem: Exception) -> str:
    return " ".join(str(problem).split())[:300].rstrip(".") or type(problem).__name__
