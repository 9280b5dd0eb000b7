"""Text tables read strictly: every complaint names file, line, column, and what was expected there.

Knows CSV and tab-separated text; must not know what the columns mean. Used by the readers of traces and profiles.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from jupyter_elastic.errors import BadRequest

MAX_BYTES = 512 * 1024 * 1024
"""A larger file is refused unread."""


class TraceError(BadRequest):
    """A trace or profile can't be read; the message names the place and what was expected there."""


Cell: TypeAlias = Callable[[str], Any]
"""Turns the text of a cell into a value; raises ValueError whose text says what was expected."""


def complain(path: Path, line: int, column: int | str, expected: str, found: str | None = None) -> NoReturn:
    """Raise the TraceError for one place of a file."""
    seen = "" if found is None else f", found {found[:80]!r}"
    raise TraceError(f"{path}: line {line}, column {column}: expected {expected}{seen}")


def text(cell: str) -> str:
    """A non-empty text."""
    if not cell:
        raise ValueError("a non-empty text")
    return cell


def anything(cell: str) -> str:
    """Whatever stands there."""
    return cell


def number(cell: str) -> float:
    """A finite number."""
    try:
        value = float(cell)
    except ValueError:
        raise ValueError("a number") from None
    if not math.isfinite(value):
        raise ValueError("a finite number")
    return value


def positive(cell: str) -> float:
    """A number above zero."""
    value = number(cell)
    if value <= 0:
        raise ValueError("a number above 0")
    return value


def not_negative(cell: str) -> float:
    """A number of at least zero."""
    value = number(cell)
    if value < 0:
        raise ValueError("a number of at least 0")
    return value


def count(cell: str) -> int:
    """A whole number above zero."""
    try:
        value = int(cell)
    except ValueError:
        raise ValueError("a whole number above 0") from None
    if value <= 0:
        raise ValueError("a whole number above 0")
    return value


def read_text(path: Path) -> str:
    """The whole file; TraceError when it is missing, too large or no UTF-8 text."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TraceError(f"{path}: larger than {MAX_BYTES:,} bytes; split it")
        return path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise TraceError(f"{path}: can't be read ({problem.strerror or problem}); check the path") from problem
    except UnicodeDecodeError as problem:
        raise TraceError(f"{path}: byte {problem.start}: expected UTF-8 text; is this the right file?") from problem


def instant(cell: str) -> int:
    """A whole number of seconds, at least zero."""
    value = not_negative(cell)
    if value != int(value):
        raise ValueError("a whole number of seconds")
    return int(value)


def rows(path: Path, columns: Sequence[tuple[str, Cell]], *, optional: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows of a CSV file with a header that has at least `columns`, each cell converted.

    Further columns are ignored. A last line that is cut off shows as a row with too few columns.
    """
    reader = _records(path, read_text(path), ",")
    first = next(reader, None)
    if first is None:
        complain(path, 1, 1, f"a header with {', '.join(name for name, _ in columns)}; the file is empty")
    names = [cell.strip() for cell in first[1]]
    where: dict[str, int] = {}
    for name, _ in columns:
        if name in names:
            where[name] = names.index(name)
        elif name not in optional:
            complain(path, first[0], 1, f"a header with a column {name!r}", ",".join(names))
    found = []
    for line, record in reader:
        if len(record) != len(names):
            complain(path, line, len(record), f"{len(names)} columns ({', '.join(names)})", f"{len(record)} columns")
        row = {}
        for name, kind in columns:
            if name in where:
                row[name] = convert(path, line, name, kind, record[where[name]].strip())
        found.append(row)
    return found


def tabbed(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each line of a tab-separated file without a header."""
    yield from _records(path, read_text(path), "\t")


def convert(path: Path, line: int, column: int | str, kind: Cell, cell: str) -> Any:
    """The value of one cell, or a TraceError that names its place."""
    try:
        return kind(cell)
    except ValueError as problem:
        complain(path, line, column, str(problem), cell)


def _records(path: Path, content: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    lines = content.splitlines()
    if delimiter == "\t":
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    else:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for record in reader:
            if record and any(cell.strip() for cell in record):
                yield reader.line_num, record
    except csv.Error as problem:
        complain(path, reader.line_num, 1, f"a line of cells ({problem})")
