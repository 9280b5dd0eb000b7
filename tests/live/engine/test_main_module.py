"""A worker's `__main__` is a module like any other: each text prints there what it prints under `python`."""

# ruff: noqa: E501 - a text of several lines is easier to compare as one

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_elastic.engines.process import Process
from jupyter_elastic.jobfiles.captures import PAYLOAD
from jupyter_elastic.jobfiles.payload import Payload, read_payload
from jupyter_elastic.kernel import capture
from tests.live.engine.bench import Bench, asynchronous
from tests.support.pool import LIMIT_S

ANNOTATED = "from __future__ import annotations\nimport dataclasses, sys, typing\nfrom dataclasses import *\n"
TEXTS = {
    "ClassVar": ANNOTATED
    + "@dataclass\nclass Config:\n    kind: typing.ClassVar[str] = 'a'\n    lr: float = 0.1\nprint(Config(0.5))",
    "ClassVar by its name": ANNOTATED
    + "from typing import ClassVar\n@dataclass\nclass Config:\n    kind: ClassVar[str] = 'a'\n    lr: float = 0.1\n"
    "print(Config(0.5), [field.name for field in fields(Config)])",
    "InitVar and KW_ONLY": ANNOTATED
    + "@dataclass\nclass Config:\n    a: int\n    b: InitVar[int] = 2\n    _: KW_ONLY\n    c: int = 3\n"
    "    def __post_init__(self, b): self.a += b\nprint(Config(1, 5, c=4), Config.__match_args__)",
    "get_type_hints": ANNOTATED
    + "class Own: pass\nclass Pair(typing.NamedTuple):\n    a: Own\nclass Keys(typing.TypedDict):\n    b: Own\n"
    "@dataclass\nclass Config:\n    c: typing.Optional[Own] = None\ndef f(x: 'Own') -> Config: ...\n"
    "for one in (Pair, Keys, Config, f): print(typing.get_type_hints(one))",
    "arguments of a dataclass": ANNOTATED
    + "import argparse\n@dataclass\nclass Arguments:\n    name: typing.Optional[str] = field(default=None)\n    n: int = 1\n"
    "hints = typing.get_type_hints(Arguments)\nparser = argparse.ArgumentParser()\n"
    "for one in fields(Arguments):\n    kind = next(k for k in [*typing.get_args(hints[one.name]), hints[one.name]])\n"
    "    parser.add_argument(f'--{one.name}', type=kind, default=one.default)\n"
    "print(Arguments(**vars(parser.parse_args(['--name', 'x', '--n', '3']))))",
    "singledispatch": ANNOTATED
    + "import functools\nclass Own: pass\n@functools.singledispatch\ndef f(x): return 'any'\n"
    "@f.register\ndef _(x: Own): return 'own'\nprint(f(Own()), f(1))",
    "doctest": "import doctest\ndef f():\n    '''\n    >>> f()\n    1\n    >>> 2\n    3\n    '''\n    return 1\n"
    "print(doctest.testmod(report=False).attempted)",
    "unittest": "import sys, unittest\nclass Case(unittest.TestCase):\n    def test_a(self): pass\n    def test_b(self): 1 / 0\n"
    "result = unittest.main(exit=False, argv=['x'], testRunner=unittest.TextTestRunner(sys.stderr)).result\n"
    "print(result.testsRun, len(result.errors), type(result.errors[0][0]))",
    "inspect": "import inspect, sys\ndef f():\n    return 1\nclass Own:\n    def g(self): ...\nmain = sys.modules['__main__']\n"
    "print(inspect.getsource(f), inspect.getmodule(f) is main)\n"
    "print([name for name, _ in inspect.getmembers(main, inspect.isfunction)], inspect.getmembers(main, inspect.isclass))",
    "the module": "import sys, types\nx = 1\nimport __main__\nmain = sys.modules[__name__]\nfrom __main__ import x as y\n"
    "__main__.z = 3\nprint(vars(main) is globals() is main.__dict__, {'x', 'y', 'main'} <= set(dir(main)), z, y)\n"
    "del main.x\nprint('x' in globals(), type(main) is types.ModuleType, main.__spec__, main.__name__, __name__, main)\n"
    "print(getattr(main, 'missing', 'no'), hasattr(main, '__builtins__'), main.__doc__, __package__, repr(print))",
    "pickle": "import copy, pickle, sys\nclass Own:\n    class Inner:\n        def __eq__(self, other): return type(other) is type(self)\n"
    "def f(): return 7\nback = pickle.loads(pickle.dumps([Own, Own.Inner(), f]))\n"
    "print(back[0] is Own, back[1] == Own.Inner(), back[2] is f, copy.deepcopy(Own.Inner()) == Own.Inner())",
    "strings of code": "import cProfile, io, contextlib, timeit\ndone = []\ndef f(): done.append(1)\n"
    "timeit.timeit('f()', setup='from __main__ import f', number=2)\n"
    "with contextlib.redirect_stdout(io.StringIO()): cProfile.run('f()')\nprint(len(done))",
    "enum": "import enum, dataclasses\nclass Kind(enum.Flag):\n    A = 1\n    B = 2\n@enum.global_enum\nclass Level(enum.IntEnum):\n"
    "    LOW = 1\nEnumOf = enum.Enum('EnumOf', 'X Y')\nMade = dataclasses.make_dataclass('Made', ['a'])\n"
    "print(Kind.A | Kind.B, repr(Level.LOW), LOW, EnumOf.X, EnumOf.__module__, Made(1), repr(Kind), Kind.__qualname__)",
    "processes": "import multiprocessing, sys\ndef square(n): return n * n\nif __name__ == '__main__':\n"
    "    for how in ('fork', 'spawn'):\n        with multiprocessing.get_context(how).Pool(1) as pool:\n"
    "            print(how, pool.map(square, range(3)))",
    "sent by dill": "import dill\nfactor = 3\nclass Own:\n    def times(self, n): return n * factor\n"
    "print(dill.loads(dill.dumps(Own))().times(2), dill.loads(dill.dumps(lambda n: n * factor))(5))",
    "pydantic": ANNOTATED + "import pydantic\nclass Inner(pydantic.BaseModel):\n    a: typing.Optional[int] = None\n"
    "class Outer(pydantic.BaseModel):\n    inner: Inner\n    more: typing.List[Inner] = []\nprint(Outer(inner={'a': '3'}))",
}  # fmt: skip
AS_A_CELL = ("ClassVar", "get_type_hints", "doctest", "the module", "pickle", "strings of code")


def _texts(only: Iterable[str] = TEXTS) -> list[Any]:
    return [pytest.param(TEXTS[name], id=name) for name in only]


def under_python(folder: Path, text: str) -> tuple[Path, str]:
    """A script's path and what `python` has it print."""
    if "dill" in text:
        pytest.importorskip("dill")
    script = folder / "script.py"
    script.write_text(text + "\n")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return script, ran.stdout


@pytest.mark.parametrize("text", _texts())
@asynchronous
async def test_a_script_prints_what_it_prints_under_python(folder: Path, tmp_path: Path, text: str) -> None:
    script, wanted = under_python(tmp_path, text)
    async with Bench(Process, folder, text + "\n", warm=False, argv=(str(script),)) as bench:
        rewrite(folder, filename=str(script), first_line=1)
        await bench.launch("h:0")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert bench.text(0) == wanted


@pytest.mark.parametrize("text", _texts(AS_A_CELL))
@asynchronous
async def test_a_cell_prints_it_too(folder: Path, tmp_path: Path, text: str) -> None:
    script, wanted = under_python(tmp_path, text)
    async with Bench(Process, folder, text + "\n", warm=False) as bench:
        await bench.launch("h:0")
        assert (await bench.ended()).outcome == "completed", bench.story()
        wanted = wanted.replace(f" from '{script}'", "").replace(f'"{script}", line 6', '"__main__", line 7')
        assert bench.text(0) == wanted  # a cell has no file and a line above its own, as in a notebook


def rewrite(folder: Path, **changes: Any) -> None:
    """Change a job's payload."""
    payload: Payload = msgspec.structs.replace(read_payload(folder), **changes)
    (folder / PAYLOAD).write_bytes(msgspec.msgpack.encode(payload))


@asynchronous
async def test_what_the_notebook_sends_has_the_modules_names(folder: Path) -> None:
    notebook: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "from dataclasses import dataclass\nfactor = 2\ndef times(n): return n * factor\n"
        "@dataclass\nclass Config:\n    lr: float = 0.1\n    def scaled(self): return times(self.lr)\n",
        notebook,
    )
    cell = (
        "import sys, typing\nmain = sys.modules['__main__']\nfactor = 10\n"
        "same = [times.__globals__ is vars(main), Config.scaled.__globals__ is globals(), times(1), Config(2).scaled(),"
        " typing.get_type_hints(Config), main.Config is Config]"
    )
    package = capture.package(cell, notebook, filename="<In[1]>", out=("same",))
    async with Bench(Process, folder, cell, out=("same",), warm=False) as bench:
        rewrite(folder, names=package.payload.names)
        await bench.launch("h:0")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert bench.results()[0]["same"] == [True, True, 10, 20, {"lr": float}, True]
