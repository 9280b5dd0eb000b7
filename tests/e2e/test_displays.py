"""What rank 0 displays is kept by papermill, in the file and on the page that nbconvert makes of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

CELL = """%%distribute --gpus 2 --engine process
import matplotlib.pyplot as plt
from tqdm.notebook import tqdm
class Table:
    def _repr_html_(self): return f'<table><tr><td>from {rank}</td></tr></table>'
bar = tqdm(range(7))
for _ in bar: pass
import gc
for _ in tqdm(range(3)): pass
gc.collect()  # the second bar, whose widget's text is asked for once more, is gone by then
plt.plot([1, 2])
Table()
"""


@pytest.mark.usefixtures("pool")
def test_papermill_and_nbconvert_keep_what_rank_0_displays(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in ("%load_ext jupyter_elastic", CELL)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "in.ipynb")
    for words in (["papermill", "-k", "python3", "in.ipynb", "out.ipynb"], ["nbconvert", "--to", "html", "out.ipynb"]):
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr[-4000:]
    cell = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells[-1]
    outputs = cell.outputs
    assert [output.output_type for output in outputs] == [
        "display_data",
        "display_data",
        "display_data",
        "execute_result",
        "display_data",
    ]
    assert "jupyter-elastic" in str(outputs[0].data.keys())
    assert "7/7" in outputs[1].data["text/plain"]
    assert "0/3" in outputs[2].data["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in outputs[2].data
    assert outputs[3].data["text/html"] == "<table><tr><td>from 0</td></tr></table>"
    assert outputs[3].execution_count == cell.execution_count
    assert outputs[4].data["image/png"].startswith("iVBOR")
    assert "ReferenceError" not in str(outputs)
    page = (tmp_path / "out.html").read_text()
    assert page.count("from 0") == 1
    assert page.count('src="data:image/png;base64,iVBOR') == 2  # rank 0's, and rank 1's in its part of the view
    assert 'sandbox="" srcdoc=' in page
