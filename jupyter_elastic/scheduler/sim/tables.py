"""Read text tables strictly: every error names file, line, column, and what was expected there.

Knows CSV and tab-separated text; must not know what the columns mean. A row is a msgspec struct, whose field types
define what a cell may hold. Used by the readers of traces and profiles.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from jupyter_elastic.types.errors import BadRequest

MAX_BYTES = 512 * 1024 * 1024
"""Maximum bytes of a file; a larger one is refused unread."""
_LARGEST = 1e300  # shuts out infinity, and with it NaN
Text = Annotated[str, Meta(min_length=1)]
Number = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
Positive = Annotated[float, Meta(gt=0, le=_LARGEST)]
NotNegative = Annotated[float, Meta(ge=0, le=_LARGEST)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[int, Meta(ge=0)]
Row = TypeVar("Row", bound=msgspec.Struct)


class TraceError(BadRequest):
    """A trace or profile can't be read; the message names the position and what was expected there."""


def complain(path: Path, line: int, column: int | str, expected: str, found: str | None = None) -> NoReturn:
    """Raise the TraceError for one position of a file."""
    seen = "" if found is None else f", found {found[:80]!r}"
    raise TraceError(f"{path}: line {line}, column {column}: expected {expected}{seen}")


def read_text(path: Path) -> str:
    """Read the whole file; TraceError if it is missing, too large or no UTF-8 text."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TraceError(f"{path}: larger than {MAX_BYTES:,} bytes; split it")
        return path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise TraceError(f"{path}: can't be read ({problem.strerror or problem}); check the path") from problem
    except UnicodeDecodeError as problem:
        raise TraceError(f"{path}: byte {problem.start}: expected UTF-8 text; is this the right file?") from problem


def rows(path: Path, kind: type[Row], *, aliases: Mapping[str, str] | None = None) -> list[tuple[int, Row]]:
    """Return line number and row for each line of a CSV file whose header has the columns that `kind` requires.

    `aliases` maps other names of a column to the one in `kind`. Further columns are ignored. A last line that is cut
    off shows as a row with too few columns.
    """
    required = [column.encode_name for column in msgspec.structs.fields(kind) if column.required]
    return [(line, convert(path, line, cells, kind)) for line, cells in named(path, required, aliases or {})]


def named(path: Path, required: list[str], aliases: Mapping[str, str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and cells by column for each line of a CSV file with a header."""
    lines = records(path, ",")
    first, header = next(lines, (0, []))
    if not first:
        complain(path, 1, 1, f"a header with {', '.join(required)}; the file is empty")
    names = [aliases.get(cell.strip(), cell.strip()) for cell in header]
    for name in required:
        if name not in names:
            complain(path, first, 1, f"a header with a column {name!r}", ",".join(names))
    for line, cells in lines:
        if len(cells) != len(names):
            complain(path, line, len(cells), f"{len(names)} columns ({', '.join(names)})", f"{len(cells)} columns")
        yield line, {name: cell.strip() for name, cell in zip(names, cells, strict=True)}


def convert(path: Path, line: int, cells: Mapping[str, str], kind: type[Row]) -> Row:
    """Convert the cells of one line to a struct; a TraceError names the position."""
    try:
        return msgspec.convert(cells, kind, strict=False)
    except msgspec.ValidationError as problem:
        expected, _, column = str(problem).rstrip("`").partition(" - at `$.")
        return complain(path, line, column, _in_words(expected), cells[column])


def value(path: Path, line: int, column: str, cell: str, kind: Any) -> Any:
    """Convert one cell to `kind`; a TraceError names the position."""
    try:
        return msgspec.convert(cell, kind, strict=False)
    except msgspec.ValidationError as problem:
        complain(path, line, column, _in_words(str(problem)), cell)


def records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each line that is not empty."""
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(read_text(path).splitlines(), delimiter=delimiter, quoting=quoting, strict=True)
    try:
        for record in reader:
            if any(cell.strip() for cell in record):
                yield reader.line_num, record
    except csv.Error as problem:
        complain(path, reader.line_num, 1, f"a line of cells ({problem})")


def _in_words(problem: str) -> str:
    """Rewrite msgspec's expectation for people: "Expected `int` >= 1" becomes "a whole number >= 1"."""
    words = {"`float`": "a number", "`int`": "a whole number", "`str`": "text"}
    expected = re.sub(r", got .*", "", problem.removeprefix("Expected "))
    return re.sub(r"`\w+`", lambda name: words.get(name[0], name[0]), expected)
