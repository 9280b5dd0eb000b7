"""What rank 0 displays is an output of the cell, as in any cell; other ranks' displays stand in their tabs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.live.notebook.conftest import Cell, Notebook

HEAD = "%%distribute --engine process "
TABLE = """
class Table:
    def _repr_html_(self): return f'<table><tr><td>from {rank}</td></tr></table>'
    def __repr__(self): return f'Table of {rank}'
"""


VIEW, JOB = "application/vnd.jupyter.widget-view+json", "application/vnd.jupyter-elastic.job+json"


def own(cell: Cell) -> list[dict[str, Any]]:
    """What the cell displays beside the job's view: of widgets those that have a text, which the view has not."""
    return [data for data in cell.shown.values() if JOB not in data and (VIEW not in data or data["text/plain"])]


def test_the_last_value_is_the_cells(notebook: Notebook) -> None:
    cell = notebook.run(HEAD + "-n 2\n40 + 2 + rank")
    assert cell.value == {"text/plain": "42"}
    assert "43" in cell.views[0]  # in rank 1's tab
    assert not notebook.run(HEAD + "\n40 + 2;  # no value").value
    assert not notebook.run(HEAD + "\nprint('nothing')").value
    assert notebook.run(HEAD + "\nimport asyncio\nawait asyncio.sleep(0, 'awaited')").result == "'awaited'"


def test_tables_markdown_and_values_are_rich(notebook: Notebook) -> None:
    cell = notebook.run(
        HEAD + "-n 2" + TABLE + "from IPython.display import Markdown\nprint('before')\n"
        "display(Markdown('**bold**'))\nprint('after')\nTable()"
    )
    assert cell.value == {"text/plain": "Table of 0", "text/html": "<table><tr><td>from 0</td></tr></table>"}
    (shown,) = own(cell)
    assert shown["text/markdown"] == "**bold**"
    page = cell.html
    assert "from 1" in page  # rank 1's, in its tab
    assert "from 0" not in page
    assert page.index("before", page.index("rank 1</summary>")) < page.index("after", page.index("rank 1</summary>"))


def test_figures_are_shown_as_inline_does(notebook: Notebook) -> None:
    cell = notebook.run(
        HEAD + "-n 2\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.figure()\nplt.plot([2, 1]);"
    )
    assert not cell.error
    pictures = own(cell)
    assert len(pictures) == 2
    assert all(picture["image/png"].startswith("iVBOR") for picture in pictures)
    assert cell.html.count('<img src="data:image/png;base64,iVBOR') == 2  # rank 1's


def test_a_display_is_renewed_and_taken_back_and_the_view_stays(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(f"go = {str(tmp_path / 'go')!r}")
    request = notebook.start(
        HEAD
        + "\nimport os, time\nfrom IPython.display import clear_output\nhandle = display('one', display_id='mine')\n"
        "while not os.path.exists(go): time.sleep(0.02)\nhandle.update('two')\n"
        "while not os.path.exists(go + '2'): time.sleep(0.02)\nclear_output(wait=True)\ndisplay('three')"
    )
    seen: list[str] = []

    def shows(cell: Cell, text: str) -> bool:
        seen[:] = [bundle["text/plain"] for bundle in own(cell)]
        return seen == [repr(text)]

    first = notebook.finish(request, until=lambda cell: shows(cell, "one"))
    (tmp_path / "go").touch()
    second = notebook.finish(request, until=lambda cell: shows(cell, "two"))
    (tmp_path / "go2").touch()
    last = notebook.finish(request)
    assert shows(last, "three")
    assert set(second.shown) & set(last.shown) >= {name for name, data in last.shown.items() if data in own(last)}
    assert any("completed" in view for view in last.views), vars(first)


def test_widgets_of_a_worker_are_drawn(notebook: Notebook) -> None:
    request = notebook.start(
        HEAD + "-n 2\nfrom tqdm.notebook import tqdm\nfor _ in tqdm(range(5), desc='steps'): pass", widgets=True
    )
    cell = notebook.finish(request)
    assert not cell.error
    bars = [state for state in notebook.comms.values() if state.get("_model_name") == "FloatProgressModel"]
    assert [(bar["value"], bar["max"], bar["bar_style"]) for bar in bars] == [(5.0, 5.0, "success")]
    views = [data[VIEW]["model_id"] for data in cell.shown.values()
             if VIEW in data]  # fmt: skip
    assert any(notebook.comms[name].get("_model_name") == "HBoxModel" for name in views)
    assert "steps: 100%" in own(cell)[0]["text/plain"]
    assert "steps: 100%" in cell.html  # rank 1's, in its tab
    restored = notebook.run(
        "from ipywidgets import Widget\nstates = Widget.get_manager_state()['state'].values()\n"
        "[s['state']['value'] for s in states if s['model_name'] == 'FloatProgressModel']"
    )
    assert restored.result == "[5.0]"


def test_displays_of_a_detached_job_are_in_its_view_and_those_of_another_cell_are_shown_again(
    notebook: Notebook,
) -> None:
    cell = notebook.run(HEAD + "-a -o job" + TABLE + "Table()")
    cell = notebook.run("job.wait()\n0;")
    assert "from 0" in cell.html
    assert not own(notebook.run("%elastic job attach " + notebook.run("print(job.id)").printed))
    notebook.run(HEAD + "-o job" + TABLE + "display(Table())\n7")
    cell = notebook.run("%elastic job attach " + notebook.run("print(job.id)").printed)
    assert [data["text/plain"] for data in own(cell)] == ["Table of 0", "7"]


def test_a_display_that_is_too_large_is_said(notebook: Notebook) -> None:
    cell = notebook.run(HEAD + "\nfrom IPython.display import HTML\nHTML('x' * 9_000_000)")
    assert cell.result.endswith("[not shown: 9 MB, and a display may have 8 MB]")
    assert "text/html" not in cell.value


def test_what_a_rank_has_printed_is_taken_back_in_its_view_and_in_the_saved_one(notebook: Notebook) -> None:
    cell = notebook.run(
        HEAD + "-n 2\nimport sys\nfrom IPython.display import clear_output\n"
        "for step in range(5):\n    clear_output(wait=True)\n    print('step', step, 'of rank', rank)\n"
        "    print('warned in step', step, file=sys.stderr)"
    )
    assert not cell.error
    for rank in range(2):
        assert f"step 4 of rank {rank}" in cell.html
    assert "warned in step 4" in cell.html
    assert not [step for step in range(4) if f"step {step}" in cell.html]
