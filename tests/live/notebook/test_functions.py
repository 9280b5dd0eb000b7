"""Functions from a notebook: results, a failure's traceback, an interrupt, and a kernel that is restarted."""

from __future__ import annotations

import re

from tests.live.notebook.conftest import Notebook

DEFINE = """
import concurrent.futures, os, pathlib, time
import jupyter_elastic as elastic

offset = 100

class Point:
    def __init__(self, x):
        self.x = x

def shifted(x):
    return x + offset

def fails(x):
    return 1 / x

def waits(path):
    while not pathlib.Path(path).exists():
        time.sleep(0.01)
    return path
"""


def test_functions_in_a_notebook(notebook: Notebook) -> None:
    assert not notebook.run(DEFINE).error
    cell = notebook.run(
        "futures = [elastic.submit(shifted, x) for x in range(4)]\n"
        "print(sorted(future.result() for future in concurrent.futures.as_completed(futures)))\n"
        "print(list(elastic.map(shifted, (x for x in range(3)))), elastic.submit(Point, 7).result().x)"
    )
    assert cell.printed.splitlines() == ["[100, 101, 102, 103]", "[100, 101, 102] 7"], cell.error
    assert notebook.run("offset = 200; print(elastic.submit(shifted, 1).result())").printed == "201\n"
    cell = notebook.run("elastic.submit(fails, 0).result()")
    assert cell.ename == "ZeroDivisionError"
    assert "return 1 / x" in re.sub(r"\x1b\[[0-9;]*m", "", cell.error), "the function's own line"


def test_an_interrupt_ends_the_waiting_and_a_restarted_kernel_finds_the_results(notebook: Notebook, tmp_path) -> None:
    assert not notebook.run(DEFINE).error
    assert not notebook.run(
        f"held = [elastic.submit(waits, {str(tmp_path / 'go')!r}) for _ in range(3)]\n"
        "while not any(future.running() for future in held):\n    time.sleep(0.01)"
    ).error
    request = notebook.start("print('waits', flush=True); held[0].result()")
    notebook.finish(request, until=lambda cell: "waits" in cell.printed)
    notebook.interrupt()
    assert notebook.finish(request).ename == "KeyboardInterrupt"
    cell = notebook.run(
        "more = elastic.submit(shifted, 5); elastic.flush()\n"
        "stopped = [future.cancel() for future in held]\n"
        "print(held[0].place[0], any(stopped), all(stopped))"
    )
    job, some, every = cell.printed.split()
    assert (some, every) == ("True", "False"), "who waits is cancelled, who runs is not"
    notebook.restart()
    (tmp_path / "go").touch()
    assert notebook.pool.ended(int(job)).outcome == "completed"
    cell = notebook.run(f"import jupyter_elastic as elastic; print(sorted(map(str, elastic.results({job}).values())))")
    assert "'105'" in cell.printed, cell.error
    assert str(tmp_path / "go") in cell.printed
