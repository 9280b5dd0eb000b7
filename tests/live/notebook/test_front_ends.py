"""What tools with less than JupyterLab show of a job: consoles, shells without a kernel, servers that keep all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.live.notebook.conftest import Cell, Notebook
from tests.support.pool import LIMIT_S, Pool

HEAD = "%%distribute --engine process "
JOB = "application/vnd.jupyter-elastic.job+json"


def views(cell: Cell) -> list[str]:
    """What the cell was shown of the job, one after the other, in words."""
    return [str(data["text/plain"]) for data in cell.drawn if JOB in data]


def test_a_value_has_the_number_of_its_cell(notebook: Notebook) -> None:
    for code in ("%%distribute --engine process\n7", "%%distribute --engine process -n 2 --out x\nx = rank\nx"):
        cell = notebook.run(code)
        assert len(cell.numbers) == 2
        assert cell.numbers[0] == cell.numbers[1]
    plain = notebook.run("8")
    assert plain.numbers[0] == plain.numbers[1] == cell.numbers[0] + 1


def test_a_console_shows_what_ranks_print(notebook: Notebook) -> None:
    cell = notebook.run(HEAD + "-n 2\nprint('said by', rank)", widgets=True)
    stands = [data for name, data in cell.shown.items() if name.startswith("#") and JOB in data]
    assert ["completed" in str(one["text/plain"]) for one in stands] == [True]
    assert "said by 0" in stands[0]["text/plain"]
    assert "said by 1" in stands[0]["text/plain"]
    failed = notebook.run(HEAD + "\nprint('before')\n1 / 0", widgets=True)
    assert failed.ename == "JobFailed"
    assert "before" in views(failed)[-1]
    assert [name for name, data in failed.shown.items() if name.startswith("#") and JOB in data]


def test_a_notebooks_page_has_one_view_of_a_job(notebook: Notebook) -> None:
    """It renews what stands: the end is no second output."""
    for widgets in (True, False):
        cell = notebook.run(HEAD + "\nprint('once')", widgets=widgets, cell="b2c1")
        assert len([data for data in cell.shown.values() if JOB in data]) == 1
        assert "completed" in views(cell)[-1]


def test_the_first_state_of_a_job_that_starts_at_once_is_not_that_it_waits(notebook: Notebook) -> None:
    notebook.run("from jupyter_elastic.widgets import job_display\njob_display.SOON_S = 60.0")
    for widgets in (True, False):
        first = views(notebook.run(HEAD + "\n1", widgets=widgets))[0]
        assert "waiting" not in first, first
    notebook.run("job_display.SOON_S = 0.2")


def test_a_server_that_keeps_each_renewal_keeps_two(notebook: Notebook, tmp_path: Path) -> None:
    """As jupyter-server-documents: the request names the cell, and nobody can answer a question."""
    notebook.run("from jupyter_elastic.widgets import job_display\njob_display.STATIC_S = 0.0")
    code = "\nimport time\nfor i in range(10):\n    print(i, flush=True)\n    time.sleep(0.2)"
    assert len(views(notebook.run(HEAD + code, cell="b2c1"))) == 2
    notebook.run("job_display.STATIC_S, job_display.SELDOMER = 0.0, 1000.0")  # of a job that is very old
    seen = views(notebook.run(HEAD + code))
    assert len(seen) == 2, seen
    notebook.run("job_display.STATIC_S, job_display.SELDOMER = 1.0, 0.01")


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Path]:
    """What jobs wait for; at the end of the test in any case."""
    yield tmp_path / "go"
    (tmp_path / "go").touch()


BREAK = {
    "a value": "get_ipython().displayhook.register_hook(broken)",
    "a view": "get_ipython().display_pub.register_hook(broken)",
    "a widget": "import comm\nmade, comm.create_comm = comm.create_comm, broken",
}
MEND = {
    "a value": "get_ipython().displayhook.unregister_hook(broken)",
    "a view": "get_ipython().display_pub.unregister_hook(broken)",
    "a widget": "comm.create_comm = made",
}


@pytest.mark.parametrize("what", BREAK)
def test_whatever_showing_raises_the_cell_waits_for_its_job(notebook: Notebook, what: str) -> None:
    notebook.run("def broken(*_, **__): raise AttributeError('no attribute session')")
    code = "--out y\ny = 41\nfrom tqdm.notebook import tqdm\nfor _ in tqdm(range(2)): pass\ndisplay('seen')\ny + 1"
    notebook.run(BREAK[what])
    cell = notebook.run(HEAD + code, widgets=True)
    notebook.run(MEND[what])
    assert not cell.error
    assert cell.printed.count("AttributeError: no attribute session") == 1, cell.printed
    assert notebook.run("print(y)").printed == "41\n"
    assert not notebook.pool.active()
    if what == "a widget":
        assert cell.result == "42"
        assert "'seen'" in [data.get("text/plain") for data in cell.drawn]


@pytest.mark.parametrize("how", ["button", "detach", "failed"])
def test_a_name_of_out_has_no_value_until_the_job_is_done(notebook: Notebook, go: Path, how: str) -> None:
    notebook.run(f"go = {str(go)!r}\nhistory, other = 'old', 'old'")
    code = f"{'-a ' if how == 'detach' else ''}--out history,other\nimport os, time\n"
    code += "while not os.path.exists(go): time.sleep(0.05)\n"
    code += "history = other = 1 / 0" if how == "failed" else "history, other = 'new', 'new too'"
    request = notebook.start(HEAD + code, cell="b2c1")
    if how != "detach":
        notebook.pool.until(lambda: any(one.phase == "running" for one in notebook.pool.active()), "it runs")
        (info,) = notebook.pool.active()
        (Path(info.spec.folder) / "background").touch()
    cell = notebook.finish(request)
    (info,) = notebook.pool.active()
    handle = f"_{cell.numbers[0]}"
    assert f"history, other come back with the first cell that begins after the end of job {info.job};" in cell.printed
    assert f"until then `{handle}.result()`" in cell.printed
    assert notebook.run("print(history)").ename == "NameError"
    notebook.run("other = 'mine'")
    go.touch()
    if how == "failed":
        notebook.pool.ended(info.job)
        notebook.pool.until(lambda: "is failed and nothing comes back" in notebook.run("1").printed, "it is said")
        assert notebook.run("print(history)").ename == "NameError"
        assert notebook.run(f"{handle}.check()").ename == "JobFailed"
        return
    assert notebook.run(f"print({handle}.result())").printed.endswith("{'history': 'new', 'other': 'new too'}\n")
    notebook.pool.until(lambda: "'new'" in notebook.run("globals().get('history')").result, "it comes by itself")
    assert notebook.run("print(other)").printed == "mine\n"  # set since: no value of the notebook is replaced


SHELL = """
import json, sys
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
outputs = []
class Hook(DisplayHook):
    def __call__(self, result=None):
        if result is not None:
            outputs.append(["value", self.shell.display_formatter.format(result)[0]])
class Publisher(DisplayPublisher):
    def publish(self, data, metadata=None, **_):
        outputs.append(["display", data])
class Shell(InteractiveShell):  # as ploomber-engine's
    def enable_gui(self, gui=None): pass
shell = Shell.instance(displayhook_class=Hook, display_pub_class=Publisher)
found = []
for cell in json.load(sys.stdin):
    shell.run_cell(cell).raise_error()
    found.append([list(outputs), str(shell.user_ns.get("y"))])
    outputs.clear()
json.dump(found, open(sys.argv[1], "w"))
"""


def test_a_shell_without_a_kernel_keeps_values_tables_and_the_end(shared_pool: Pool, tmp_path: Path) -> None:
    table = "from IPython.display import HTML\ndisplay(HTML('<b>shown</b>'))\nprint('from', rank)\n{'value': rank}"
    cells = [
        "%load_ext jupyter_elastic", HEAD + f"-n 2\n{table}", HEAD + "--out y\ny = 41",
        HEAD + "-a -o job\nprint('far')", "job.wait()", "%elastic job list --all",
    ]  # fmt: skip
    (tmp_path / "shell.py").write_text(SHELL)
    done = subprocess.run(
        [sys.executable, "shell.py", "out.json"], input=json.dumps(cells), cwd=tmp_path, env=shared_pool.env, text=True,
        capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    (shown, value, view), (end,), (begin, *_), (last, *_), (listed,) = [outputs for outputs, _ in found[1:]]
    assert shown == ["display", {"text/plain": "<IPython.core.display.HTML object>", "text/html": "<b>shown</b>"}]
    assert value == ["value", {"text/plain": "{'value': 0}"}]
    assert "completed" in view[1]["text/plain"]
    assert "from 1" in view[1]["text/html"]
    names = [json.dumps(one[1][JOB]["page"]["screen"]["name"]) for one in (view, end, begin)]
    assert names == ['"cell-2"', '"cell-3"', '"cell-4"']
    assert found[2][1] == "41"
    assert "far" in str(found[4])
    assert "<table" in listed[1]["text/html"]
    assert last is not None


def test_a_notebook_under_ipython_is_a_terminal_with_numbers(shared_pool: Pool, tmp_path: Path) -> None:
    cells = [
        "%load_ext jupyter_elastic", HEAD + "\nprint('first')", HEAD + "\nprint('second')",
        "%elastic pool timeline --ahead 0",
    ]  # fmt: skip
    made: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(made, tmp_path / "in.ipynb")
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--quick", "in.ipynb"], cwd=tmp_path, env=shared_pool.env, text=True,
        capture_output=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "cell-2: completed" in done.stdout
    assert "cell-3: completed" in done.stdout
    assert "second" in done.stdout
    assert "The picture is in JupyterLab" in done.stdout
