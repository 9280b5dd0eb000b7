"""Hands variables of a session over to a worker that joins in the middle of a cell: rank 0 writes them to a file.

Rank 0 writes the file as a cell begins, so that a joining worker can run the cell from its top as the others have: the
variables that `training.share` has named, and all modules, functions and classes of the session's namespace. Knows that
namespace and the job's folder; must not know the driver.
"""

from __future__ import annotations

import io
import os
import re
import sys
import types
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from jupyter_elastic.jobfiles import code_by_value
from jupyter_elastic.jobfiles.names_used import globals_read
from jupyter_elastic.jobfiles.payload import ANCHOR, OWN, load_names
from jupyter_elastic.platform.private_files import write_private
from jupyter_elastic.training import ranks
from jupyter_elastic.training.frameworks import samplers
from jupyter_elastic.training.run import run
from jupyter_elastic.training.share import names as shared

FILE = "session-names.pickle"
"""Name of the file in the job's folder."""
_LOOP = re.compile(r"\brun\b|\belastic\b|\bfit\b")
"""Words of a cell's text that may lead to an elastic loop."""


def write(folder: Path, namespace: dict[str, Any], source: str, reads: Iterable[str]) -> str:
    """Write what a joining worker needs for a cell with this text, which reads these names.

    Returns why no file is written, as a sentence; empty when it is written.
    """
    if not shared:
        return "what newcomers are to have is not named: training.share(model, optimizer, ...)"
    code = [name for name, value in namespace.items() if _is_code(value) and name not in OWN and name[:2] != "__"]
    handed = {name: namespace[name] for name in (*code, *shared) if name in namespace}
    lacks, loop = _follow(reads, namespace, handed)
    if lacks:
        return f"newcomers would lack {', '.join(lacks)}: name {'it' if len(lacks) == 1 else 'them'} by training.share"
    if not (loop or _LOOP.search(source)):
        return "this cell was thought to have no elastic loop"
    try:
        data = _dump(handed, namespace)
    except Exception:
        for name in code:
            if not _travels(handed[name], namespace):
                del handed[name]
        try:
            data = _dump(handed, namespace)
        except Exception as problem:
            culprit = next((name for name, value in handed.items() if not _travels(value, namespace)), "a variable")
            return f"{culprit} can't be handed over: {type(problem).__name__}: {problem}"
        if lacks := _follow(reads, namespace, handed)[0]:
            return f"{', '.join(lacks)} can't be handed over"
    try:
        write_private(folder / FILE, data)
    except OSError as problem:
        return f"what newcomers are to have can't be written: {problem}"
    return ""


def read(folder: Path, namespace: dict[str, Any]) -> None:
    """Fill the namespace that a joining worker begins with; its functions read their names in it."""
    with (folder / FILE).open("rb") as file:
        content = load_names(file, namespace)  # by rank 0 of the same session
    namespace.update(content["names"])
    shared.update(dict.fromkeys(content["shared"]))
    samplers.handed_over(*content["place"])
    os.chdir(content["folder"])
    sys.path[:] = [*(entry for entry in content["path"] if entry not in sys.path), *sys.path]


def _dump(handed: dict[str, Any], namespace: dict[str, Any]) -> bytes:
    anchor = types.FunctionType(_nothing.__code__, namespace, ANCHOR)
    anchor.__module__ = "__main__"
    content = {
        ANCHOR: anchor,
        "names": handed,
        "shared": list(shared),
        "place": ranks.in_job(),
        "folder": str(Path.cwd()),
        "path": list(sys.path),
    }
    file = io.BytesIO()
    _Pickler(file, namespace).dump(content)
    return file.getvalue()


def _travels(value: Any, namespace: dict[str, Any]) -> bool:
    try:
        _Pickler(io.BytesIO(), namespace).dump(value)
    except Exception:
        return False
    return True


class _Pickler(code_by_value.Pickler):
    """Pickles functions of the namespace without the names that they read in it: the joining worker has its own."""

    def __init__(self, file: io.BytesIO, namespace: dict[str, Any]) -> None:
        super().__init__(file, protocol=5)
        self._namespace = namespace

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType) and getattr(obj, "elastic", False):
            return run, (obj.__wrapped__,)  # type: ignore[attr-defined]
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.FunctionType) and obj.__globals__ is self._namespace and isinstance(reduced, tuple):
            reduced[2][1]["__globals__"] = {}
        return reduced


def _follow(reads: Iterable[str], namespace: dict[str, Any], handed: Collection[str]) -> tuple[list[str], bool]:
    """Return the names that are read but not handed over, and True if an elastic function is among all names read.

    Names that functions and classes of the session read count too.
    """
    lacks: list[str] = []
    seen: set[str] = set()
    todo, loop = list(reads), False
    while todo:
        name = todo.pop()
        if name in seen or name in OWN or name not in namespace:
            continue
        seen.add(name)
        value = namespace[name]
        loop = loop or bool(getattr(value, "elastic", False) and isinstance(value, types.FunctionType))
        if name not in handed:
            lacks.append(name)
            continue
        for code in _codes(value, namespace):
            read_there = set(globals_read(code))
            loop = loop or "run" in code.co_names
            todo += sorted(read_there)
    return sorted(lacks), loop


def _is_code(value: Any) -> bool:
    return isinstance(value, types.ModuleType | types.FunctionType | types.BuiltinFunctionType | type)


def _codes(value: Any, namespace: dict[str, Any]) -> Iterator[types.CodeType]:
    """Yield the code of a function or class of the session, or of an instance of such a class."""
    value = getattr(value, "__func__", value)
    if isinstance(value, types.FunctionType):
        wrapped = getattr(value, "__wrapped__", None)
        if value.__globals__ is namespace:
            yield value.__code__
        elif wrapped is not None:
            yield from _codes(wrapped, namespace)
        return
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__ == "__main__":
        for part in vars(kind).values():
            for function in (part.fget, part.fset) if isinstance(part, property) else (part,):
                inner = getattr(function, "__func__", function)
                if isinstance(inner, types.FunctionType):
                    yield from _codes(inner, namespace)


def _nothing() -> None:
    """The anchor's code, which reads no name."""
