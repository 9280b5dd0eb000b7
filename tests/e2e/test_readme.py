"""README's cells, run in a notebook in their order, do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

PAGE = (Path(__file__).resolve().parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHOW = """from jupyter_elastic.client import Client, services
job = Client(services.ensure(start=False)).jobs(all=True)[-1]
print("back:", type(inside).__name__, job.phase, job.progress.epoch, job.progress.metrics["loss"] < 0.05)
"""


@pytest.mark.horovod("torch")
def test_the_cells_of_readme_run_as_they_stand(pool: Path, tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(block) for block in (*BLOCKS, SHOW)])
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_name="python3", timeout=200, resources=resources).execute()
    assert notebook.cells[-1].outputs[0].text == "back: int completed 20.0 True\n"
