"""What of the notebook a cell takes along: what it reads, by value where the workers can't find it by name."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest

from jupyter_elastic.client import pickling
from jupyter_elastic.jobfiles.payload import Payload, restore_namespace
from jupyter_elastic.kernel import capture
from jupyter_elastic.types.errors import PackagingError

BOX = """
import threading
lock = threading.Lock()
class Box:
    def __init__(self): self.lock, self.items = 3, [1, 2]
def size(box): return box.lock + len(box.items)
"""


def notebook(source: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(source, namespace)
    return namespace


def pack(cell: str, namespace: dict[str, Any], **how: Any) -> capture.Package:
    return capture.package(cell, namespace, filename="<In[1]>", first_line=2, **how)


def run(package: capture.Package) -> dict[str, Any]:
    """What a worker does: from bytes alone."""
    payload = msgspec.msgpack.decode(msgspec.msgpack.encode(package.payload), type=Payload)
    namespace = restore_namespace(payload)
    exec(compile(payload.source, payload.filename, "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    ("source", "cell", "captured"),
    [
        (BOX, "found = size(Box())", {"size", "Box"}),
        ("import math\nlog = [0] * 9\ndef f(x): return math.log(x)", "found = f(1)", {"f", "math"}),
        ("shape = 1\nclass A:\n    shape = 4\n    def get(self): return self.shape\na = A()", "found = a.get()", {"a"}),
        ("data = 2\ndef f(x):\n    def g(): return x.data\n    x.data = 1\n    return g()", "found = f(print)", {"f"}),
        ("import json as loads\nimport json\ndef f():\n    from json import loads\n    return loads('1')",
         "found = f()", {"f"}),
    ],
)  # fmt: skip
def test_attributes_are_no_names_of_the_notebook(source: str, cell: str, captured: set[str]) -> None:
    source = source.replace("f(print)", "f()")
    cell = cell.replace("f(print)", "f(type('X', (), {}))")
    namespace = notebook(source)
    here = dict(namespace)
    exec(cell, here)
    package = pack(cell, namespace)
    assert {one.name for one in package.captured} == captured
    assert run(package)["found"] == here["found"]


def test_the_culprit_of_a_function_is_a_name_that_it_reads() -> None:
    namespace = notebook(
        f"{BOX}conn2 = threading.Lock()\ndef g(box):\n    size = box.lock\n    with conn2:\n        return size\n"
    )
    with pytest.raises(PackagingError, match="`g` reads `conn2`"):
        pickling.pickled_function(namespace["g"])


def test_names_that_inner_functions_classes_and_comprehensions_read_are_captured() -> None:
    namespace = notebook(
        "a = b = c = d = 1\n"
        "def f():\n    class K:\n        x = a\n        def m(self): return b\n"
        "    return K.x + K().m() + sum([c for _ in range(2)]) + (lambda: d)()"
    )
    package = pack("found = f()", namespace)
    assert {one.name for one in package.captured} == {"a", "b", "c", "d", "f"}
    assert run(package)["found"] == 5


FRAME = "import pandas as pd, numexpr as ne\nclass Frame:\n    columns = ['a']\npdf = df = Frame()\n"
TABLES = FRAME + "limit = lim = a = accuracy = 1\n"


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of libraries that these tests can do without, their names."""
    for name in ("pandas", "numexpr"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("cell", "named"),
    [
        ("df.query('a > @limit')", ["limit"]),
        ("df.query(expr=f'a > @limit and a < @{lim}')", ["limit"]),
        ("df.eval('b = a + @lim')", ["lim"]),
        ("pd.eval('limit + lim')", ["lim", "limit"]),
        ("import pandas\npandas.eval('limit * 2')", ["limit"]),
        ("ne.evaluate('2 * limit')", ["limit"]),
        ("import duckdb\nduckdb.sql('select sum(a) from pdf')", ["pdf"]),
        ("import duckdb as d\nd.query('SELECT * FROM x JOIN\\n pdf ON a')", ["pdf"]),
        ("import duckdb\ncon = duckdb.connect()\ncon.execute('create table t as select * from pdf')", ["pdf"]),
        ("import polars as pl\npl.sql('select a from pdf').collect()", ["pdf"]),
    ],
)
def test_names_that_stand_in_a_text_only_are_told(cell: str, named: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (note,) = pack(cell, notebook(TABLES)).notes
    assert note.startswith(" and ".join(f"`{name}`" for name in named) + " ")
    assert f"--in {named[0]}" in note


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    "cell",
    [
        "df.query('a > 1')",  # a column
        "limit = 3\ndf.query('a > @limit')",
        "def f(df, limit):\n    return df.query('a > @limit')\nf(df, 2)",
        "df.query('a > @limit')\nprint(limit)",
        "print('from pdf', 'to @limit', 'select a from pdf')",
        "import sqlite3\nsqlite3.connect(':memory:').execute('select 1 as x from pdf')",
        "import duckdb\nduckdb.sql('select * from limit')",  # no table
        "class Model:\n    def evaluate(self, what): pass\nModel().evaluate('accuracy')",
        "eval('limit')",
        "df.query('not Python, 100% @')",
    ],
)
def test_ordinary_words_in_texts_are_no_names(cell: str) -> None:
    assert pack(cell, notebook(TABLES)).notes == ()
