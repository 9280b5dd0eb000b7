"""The code of a cell has the file name that the kernel has for that text; people see the cell's number."""

from __future__ import annotations

from pathlib import Path

from tests.live.notebook.conftest import Notebook

HEAD = "%%distribute --engine process "
NAMES = (
    "import inspect\ndef f():\n    return 1\n"
    "found = (f.__code__.co_filename, f.__code__.co_firstlineno, inspect.getsource(f), inspect.getsourcefile(f))"
)


def test_the_name_is_the_kernels_for_the_same_text(notebook: Notebook) -> None:
    for head in (HEAD + "--out found", HEAD + "--gpus 2 --out found"):
        assert not notebook.run(f"{head}\n{NAMES}").error
        shown = notebook.run(
            "names = {number: name for name, number in get_ipython().compile._filename_map.items()}\n"
            "print(found == (names[len(In) - 2], 3, 'def f():\\n    return 1\\n', names[len(In) - 2]))"
        )
        assert shown.printed == "True\n", notebook.run("print(found, names)").printed


def test_what_keeps_by_that_name_finds_it_in_the_next_run(notebook: Notebook, tmp_path: Path) -> None:
    cell = (
        f"{HEAD}\nfrom joblib import Memory\nmemory = Memory({str(tmp_path)!r}, verbose=0)\n@memory.cache\n"
        "def slow(n):\n    print('computed')\n    return n\nprint(slow(3))"
    )
    assert not notebook.run(cell).error
    views = notebook.run(cell).views
    assert "computed" not in views[0]


def test_a_failure_has_the_cells_number_all_the_same(notebook: Notebook) -> None:
    notebook.run(
        f"{HEAD}--session kept --out found\nimport inspect\ndef g(x):\n    return 1 / x\nfound = g.__code__.co_filename"
    )
    assert "ipykernel_" in notebook.run("print(found)").printed
    for text in ("g(0)", "def h():\n    import warnings\n    raise ValueError('h')\nh()"):
        cell = notebook.run(f"{HEAD}--session kept\n{text}")
        assert 'File "<In[' in cell.error
        assert "ipykernel_" not in cell.error
