"""The blocks of docs/tutorial.md, run in a notebook in their order, show what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_tutorial_runs_from_top_to_bottom(pool: Path, tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(block) for block in BLOCKS])
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_name="python3", timeout=120, resources=resources).execute()
    printed = {
        block: "".join(output.get("text") or output.data["text/plain"] for output in cell.outputs)
        for block, cell in zip(BLOCKS, notebook.cells, strict=True)
    }
    assert re.search(r"rank 0 counted 15\d{4}\n", printed['print("rank 0 counted", inside)\n'])
    (handle,) = (text for block, text in printed.items() if "job.wait" in block)
    assert "completed 42" in handle
    assert "step 0\nstep 1\n" in handle
    assert "slow" in printed["%elastic job list --all\n"]
    assert ":1" in printed["%elastic host slots\n"]
    assert "fifo" in printed["%elastic policy use fifo\n"]
    assert "balanced" in printed["%elastic policy use balanced\n"]
