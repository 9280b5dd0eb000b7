"""From a cell to a payload: what is found, what is refused, and what a worker gets."""

from __future__ import annotations

import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.jobfiles.payload import create_job_folder, read_payload
from jupyter_elastic.jobfiles.submit_environment import environment
from jupyter_elastic.kernel import capture
from jupyter_elastic.kernel.analysis import read
from jupyter_elastic.types.errors import PackagingError
from jupyter_elastic.worker import shell
from tests.support.packages import notebook, pack, run


def needs(source: str) -> set[str]:
    return set(read(source, filename="<In[1]>", first_line=2).needs) - set(dir(__builtins__)) - {"print", "__import__"}


def test_names_that_a_cell_sets() -> None:
    source = "import os\na = [b for b in c]\nfor d in e: pass\n(f := [g for d in h])\ndef i(): pass\n[j for os in k]"
    assert read(source, filename="<In[1]>", first_line=2).sets == {"os", "a", "d", "f", "i"}


def test_a_name_that_nobody_sets_is_told_before_the_cell_fails_on_it() -> None:
    def told(source: str, **how: Any) -> tuple[str, ...]:
        return pack(source, {"data": 1}, **how).notes

    assert told("print(undefined_thing, data, rank, display, __name__)\nother(2)") == (
        "neither the notebook nor the cell has `undefined_thing`, `other`",
    )
    assert told("for i in range(3):\n    late = i\nprint(late)") == ()
    assert told("from somewhere import *\nundefined_thing") == ()  # which may bring it


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\nprint(x, y)", {"y"}),
        ("x += 1", {"x"}),
        ("a.b[c] = d", {"a", "c", "d"}),
        ("def f(): return g()\ndef g(): return z\nf()", {"z"}),
        ("def f(): return g()\ndef g(): return z", {"z"}),
        ("def f(): return x\nf()\nx = 1", {"x"}),
        ("def f(): return x\nx = 1\nf()", set()),
        ("def f(x, *, y=k): return x + y\nf(1)", {"k"}),
        ("@dec\nclass A(B):\n    c = d\n    def m(self): return e\nA()", {"dec", "B", "d", "e"}),
        ("q + sum([q for q in w])", {"q", "w"}),
        ("[[q for q in r] for r in w]", {"w"}),
        ("(q := q + 1, [r for r in w])", {"q", "w"}),
        ("[q for q in w if q > v]", {"w", "v"}),
        ("f = lambda s: s + u", {"u"}),
        ("if p:\n    t = 1\nt", {"p", "t"}),
        ("if p:\n    t = 1\nelse:\n    t = 2\nt", {"p"}),
        ("with open(path) as f:\n    s = f.read()\ns", {"path", "open"} - {"open"}),
        ("try:\n    import foo\nexcept ImportError as e:\n    foo = e\nfoo", set()),
        ("match p:\n    case Point(x=k):\n        print(k)\n    case _:\n        print(k2)", {"p", "Point", "k2"}),
        ("if (m := h()):\n    print(m)\nprint(f'{n!r:>{width}}')", {"h", "m", "n", "width"}),
        ("import numpy as np\nnp.zeros(n)", {"n"}),
        ("print(rank, world_size, local_rank, device)", set()),
        ("await thing\nasync with other as it:\n    found = [x async for x in it]", {"thing", "other"}),
        ("async def go():\n    return await thing\nimport asyncio\nasyncio.run(go())", {"thing"}),
    ],
)
def test_names_that_a_cell_needs(source: str, expected: set[str]) -> None:
    import builtins

    assert {name for name in needs(source) if not hasattr(builtins, name)} == expected


def test_long_texts_of_many_definitions_are_read() -> None:
    for path in Path(capture.__file__).parents[2].glob("*.py"):
        assert read(path.read_text(), filename=path.name, first_line=1).source == path.read_text()


def test_values_functions_and_what_they_read_travel_together() -> None:
    ns = notebook(
        "import math\nLR = 3\nUNUSED = 5\n"
        "def inner(): return LR * 2\n"
        "def f(): return inner() + math.floor(1.5)\n"
        "class Net:\n    def size(self): return inner()\n"
        "net = Net()\n"
    )
    package = pack("total = f() + net.size()", ns, out=["total"])
    assert {c.name for c in package.captured} == {"f", "net", "inner", "LR", "math"}
    assert run(package)["total"] == 13
    kinds = {c.name: c.kind for c in package.captured}
    assert kinds["f"] == "code"
    assert kinds["LR"] == "value"
    assert kinds["math"] == "import"
    assert all(c.size > 0 for c in package.captured)


def test_a_cell_that_sets_a_name_changes_what_the_notebooks_functions_read() -> None:
    ns = notebook("LR = 1\ndef f(): return LR")
    assert run(pack("LR = 7\ngot = f()", ns))["got"] == 7


def test_names_of_the_shell_and_of_the_worker_stay_at_home() -> None:
    ns = notebook("In = [1]\n_ = 3\nrank = 9\nx = 2")
    package = pack("y = [x for _ in range(2)]; print(rank, In, _, __name__)", ns)
    assert [c.name for c in package.captured] == ["x"]


def test_only_the_names_asked_for() -> None:
    ns = notebook("a = 1\nb = 2\nlock = __import__('threading').Lock()")
    assert [c.name for c in pack("print(a, b, lock)", ns, capture=["a"]).captured] == ["a"]
    assert pack("print(a, b, lock)", ns, capture=()).captured == ()
    with pytest.raises(PackagingError, match="the notebook has no `zzz`"):
        pack("print(a)", ns, capture=["zzz"])


def test_what_cannot_travel_is_named_with_the_way_out() -> None:
    ns = {"__name__": "__main__", "lock": threading.Lock()}
    with pytest.raises(PackagingError, match=r"`lock` \(lock\) can't travel.*inside the cell.*--in.*--no-capture"):
        pack("with lock:\n    pass", ns)


def test_an_old_value_that_the_cell_replaces_is_left_out_when_it_cannot_travel() -> None:
    ns = {"__name__": "__main__", "batch": threading.Lock()}
    package = pack("for batch in range(3):\n    pass\nprint(batch)", ns)
    assert package.captured == ()
    assert "left out" in package.notes[0]


def test_large_warns_and_huge_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ns = {"__name__": "__main__", "data": b"x" * 5000}
    monkeypatch.setattr(capture, "LARGE", 1000)
    assert "`data` is large" in pack("len(data)", ns).notes[0]
    monkeypatch.setattr(capture, "HUGE", 2000)
    with pytest.raises(PackagingError, match=r"`data` is over .* Load it inside the cell"):
        pack("len(data)", ns)
    monkeypatch.setattr(capture, "HUGE", 10**9)
    monkeypatch.setattr(capture, "TOTAL", 2000)
    with pytest.raises(PackagingError, match="together"):
        pack("len(data)", ns)


@pytest.mark.parametrize("source", ["", "   \n\n", "# only a comment", "'text'", "pass"])
def test_an_empty_cell_is_refused(source: str) -> None:
    with pytest.raises(PackagingError, match="the cell is empty"):
        pack(source, {})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ny = (", "syntax error in <In\\[1\\]>, line 3"),
        ("return 3", "line 2: 'return' outside function"),
        ("def f():\n    await x", "'await' outside async function"),
        ("x = 1\n%time f()", "line 3: `%time` is an IPython magic"),
        ("%pip install foo", "install in a cell of its own"),
        ("%%bash\nls", "`%%bash` is an IPython magic"),
        ("get_ipython().foo()", "line 2 calls get_ipython"),
        ("x = '\x00'", "not Python|syntax error"),
    ],
)
def test_what_is_not_python_is_refused_with_its_line(source: str, message: str) -> None:
    with pytest.raises(PackagingError, match=message):
        pack(source, {})


def test_shell_lines_run_in_the_worker_and_display_magics_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    ns = notebook("word = 'hällo'")
    package = pack("%matplotlib inline\nlines = !printf 'a\\nb'\n!echo {word}\nprint('é'); z = 1", ns)
    assert "%matplotlib is left out" in package.notes[0]
    after = run(package)
    assert after["lines"] == ["a", "b"]
    assert after["z"] == 1
    assert "hällo" not in package.payload.source
    assert capfd.readouterr().out.startswith("hällo")
    assert shell.getoutput("echo 1") == ["1"]


def test_lines_keep_their_numbers() -> None:
    package = pack("%matplotlib inline\n!true\n\nraise ValueError('here')", {})
    with pytest.raises(ValueError, match="here") as caught:
        run(package)
    assert caught.traceback[-1].lineno + 1 == 4


def test_a_name_to_bring_back_must_be_set() -> None:
    with pytest.raises(PackagingError, match="--out total: the cell never sets `total`"):
        pack("totl = 1", {}, out=["total"])
    assert pack("def f():\n    global total\n    total = 1\nf()", {}, out=["total"]).payload.out == ("total",)
    assert pack("from math import *", {}, out=["pi"]).payload.out == ("pi",)
    assert pack("x.append(1)", notebook("x = []"), out=["x", "x"]).payload.out == ("x",)


def test_the_folder_is_private(tmp_path: Path) -> None:
    package = pack("x = 1", {})
    folder = create_job_folder(package.payload, tmp_path / "jobs")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {
        "cell.py": 0o600,
        "payload.msgpack": 0o600,
    }
    assert read_payload(folder) == package.payload
    (tmp_path / "file").write_text("")
    with pytest.raises(PackagingError, match="can't be written"):
        create_job_folder(package.payload, tmp_path / "file" / "jobs")


def test_environment_keeps_what_changes_behaviour_and_not_secrets_or_devices() -> None:
    kept = environment({
        "PATH": "p", "OMP_NUM_THREADS": "1", "HOROVOD_FUSION_THRESHOLD": "2", "HOROVOD_RANK": "1",
        "CUDA_VISIBLE_DEVICES": "0", "JUPYTERHUB_API_TOKEN": "secret", "MY_PASSWORD": "x",
    })  # fmt: skip
    assert kept == {"PATH": "p", "OMP_NUM_THREADS": "1", "HOROVOD_FUSION_THRESHOLD": "2"}
    payload = pack("x = 1", {}, env={"MINE": "1"}).payload
    assert payload.env["MINE"] == "1"
    assert "" not in payload.sys_path
    assert Path(payload.workdir).is_dir()
