"""What of the notebook a cell takes along: what it reads, by value where the workers can't find it by name."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jupyter_elastic.client import pickling
from jupyter_elastic.jobfiles import results
from jupyter_elastic.jobfiles.results import unpack
from jupyter_elastic.kernel import capture
from jupyter_elastic.types.errors import PackagingError
from tests.support.packages import notebook, pack, run

BOX = """
import threading
lock = threading.Lock()
class Box:
    def __init__(self): self.lock, self.items = 3, [1, 2]
def size(box): return box.lock + len(box.items)
"""


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


# --- what pickles itself by its name

BY_NAME = """
import copyreg, enum, functools
@functools.lru_cache(maxsize=7)
def weight(n): return n * 1.5
def total(ns): return sum(weight(n) for n in ns)
@functools.cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
RATE = 2
@functools.cache
def rated(n): return n * RATE
class Table:
    def __init__(self): self.n = 3
    @functools.lru_cache
    def row(self, i): return self.n * i
    @functools.cached_property
    def all(self): return [self.n]
    @staticmethod
    @functools.cache
    def one(x): return x
class Odd:
    def __init__(self, x): self.x = x
copyreg.pickle(Odd, lambda odd: (Odd, (odd.x + 1,)))
class Color(enum.Enum):
    RED = 3
half = functools.partial(weight, 4)
"""


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("found = total(range(3))", 4.5),
        ("found = fib(30), fib.cache_info().maxsize, weight.cache_parameters()['maxsize']", (832040, None, 7)),
        ("RATE = 5\nfound = rated(2)", 10),
        ("t = Table()\nfound = t.row(2), t.all, t.one(4)", (6, [3], 4)),
        ("found = half() + Odd(1).x + Color.RED.value + rated(1)", 12),
    ],
)
def test_cached_functions_and_what_else_goes_by_name_travel(cell: str, found: Any) -> None:
    assert run(pack(cell, notebook(BY_NAME)))["found"] == found


def test_cached_functions_are_submitted() -> None:
    function = pickle.loads(pickling.pickled_function(notebook(BY_NAME)["total"]))
    assert function(range(3)) == 4.5


@pytest.mark.parametrize("reduce", ["def __reduce__(self): return 'GONE'", "def __reduce_ex__(self, _): return 'GONE'"])
def test_what_only_its_name_in_the_notebook_says_is_refused_before_it_is_queued(
    reduce: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = notebook(f"class Gone:\n    {reduce}\nGONE = Gone()\ndef f(x=None): return x is GONE")
    monkeypatch.setattr(sys.modules["__main__"], "GONE", namespace["GONE"], raising=False)
    with pytest.raises(PackagingError, match=r"`GONE`.*by its name.*Nothing was queued"):
        pack("print([GONE])", namespace)
    with pytest.raises(PackagingError, match="by its name"):
        pickling.pickled_function(namespace["f"])


KERAS = """
import keras
class Scale(keras.layers.Layer):
    def call(self, x): return x * 3
@keras.saving.register_keras_serializable("mine")
class Add(keras.layers.Layer):
    def call(self, x): return x + 1
def twice(x): return x * 2
def far(y, z): return abs(y - z)
class Off(keras.losses.Loss):
    def call(self, y, z): return abs(y - z)
model = keras.Sequential([keras.Input((1,)), Scale(), Add(), keras.layers.Activation(twice)])
model.compile("sgd", Off(), metrics=[far])
"""


def test_keras_models_with_parts_of_the_notebook_travel_both_ways() -> None:
    pytest.importorskip("keras")
    namespace = notebook(KERAS)
    registered = sys.modules["keras"].saving.get_custom_objects()
    registered.clear()  # as in a worker
    after = run(pack("found = float(model(np.ones((1, 1)))[0, 0])", {**namespace, "np": sys.modules["numpy"]}))
    assert after["found"] == 8.0
    back = pickle.loads(unpack(results.pack({"model": after["model"]})).pickles[0][1])["model"]
    assert float(back(sys.modules["numpy"].ones((1, 1)))[0, 0]) == 8.0


REGISTRY = """
made = []
class Base:
    def __init_subclass__(cls):
        made.append(cls)
        found[cls.__name__] = cls
found = {}
class A(Base):
    pass
class B(A):
    pass
"""
READ = """
import io, pathlib, sys
from jupyter_elastic.jobfiles.payload import load_names
namespace = {}
namespace.update(load_names(io.BytesIO(pathlib.Path(sys.argv[1]).read_bytes()), namespace))
found, made = namespace["found"], namespace["made"]
print(found["A"] is namespace["A"], found["B"] is namespace["B"], set(made) == {namespace["A"], namespace["B"]})
"""


def test_a_class_that_its_base_keeps_in_a_registry_is_made_once_in_a_worker(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(REGISTRY, namespace)
    payload = capture.package("print(A, B, found, made)", namespace, filename="<In[1]>").payload
    (tmp_path / "names").write_bytes(payload.names)
    read = [sys.executable, "-c", READ, str(tmp_path / "names")]
    done = subprocess.run(read, capture_output=True, text=True, check=False)
    assert done.stdout == "True True True\n", done.stderr
