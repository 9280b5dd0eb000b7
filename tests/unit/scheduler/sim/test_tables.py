"""Complaints about a file name the file, the line, the column and what was expected there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from jupyter_elastic.scheduler.sim import tables
from jupyter_elastic.scheduler.sim.tables import TraceError


class Line(msgspec.Struct):
    name: tables.Text
    time: tables.Number
    gpus: tables.Count
    at: tables.Seconds = 0
    work: tables.NotNegative = 0.0
    speed: tables.Positive = 1.0


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_rows_are_converted_and_further_columns_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, "gpus,other,name,when\n4,x,a,10\n\n2,y,b,20.0\n")
    assert tables.rows(path, Line, aliases={"when": "time"}) == [
        (2, Line("a", 10, 4)),
        (4, Line("b", 20, 2)),
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "line 1, column 1: expected a header with name, time, gpus"),
        ("name,time\na,1\n", "line 1, column 1: expected a header with a column 'gpus'"),
        ("name,time,gpus\na,1,2\nb,2\n", "line 3, column 2: expected 3 columns"),
        ("name,time,gpus\na,1,2\nb,soon,2\n", "line 3, column time: expected a number, found 'soon'"),
        ("name,time,gpus\na,1e301,2\n", "line 2, column time: expected a number <= 1e+300, found '1e301'"),
        ("name,time,gpus\na,nan,2\n", "line 2, column time: expected a number >= -1e+300, found 'nan'"),
        ("name,time,gpus\na,1,0\n", "line 2, column gpus: expected a whole number >= 1, found '0'"),
        ("name,time,gpus\na,1,2.5\n", "line 2, column gpus: expected a whole number, found '2.5'"),
        ("name,time,gpus,at\na,1,2,-1\n", "line 2, column at: expected a whole number >= 0, found '-1'"),
        ("name,time,gpus,work\na,1,2,-1\n", "line 2, column work: expected a number >= 0.0, found '-1'"),
        ("name,time,gpus,speed\na,1,2,0\n", "line 2, column speed: expected a number > 0.0, found '0'"),
        ("name,time,gpus,speed\na,1,2,inf\n", "line 2, column speed: expected a number <= 1e+300, found 'inf'"),
        ("name,time,gpus\n,1,2\n", "line 2, column name: expected text of length >= 1"),
        ('name,time,gpus\n"a,1,2\n', "line 2, column 1: expected a line of cells"),
    ],
)
def test_a_damaged_file_is_told_by_its_place(tmp_path: Path, text: str, place: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as problem:
        tables.rows(path, Line)
    assert str(problem.value).startswith(f"{path}: {place}")


def test_what_is_no_text_or_not_there(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"name\n\xff\xfe\n")
    with pytest.raises(TraceError, match="byte 5: expected UTF-8 text"):
        tables.read_text(binary)
    with pytest.raises(TraceError, match="No such file or directory"):
        tables.read_text(tmp_path / "absent")
