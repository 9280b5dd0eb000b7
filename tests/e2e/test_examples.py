"""The examples run as people run them, and show what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str) -> NotebookNode:
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    resources = {"metadata": {"path": str(EXAMPLES)}}
    NotebookClient(notebook, timeout=280, kernel_name="python3", resources=resources).execute()
    return notebook


def printed(notebook: NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(_text(output) + "\n" for output in outputs)


def _text(output: NotebookNode) -> str:
    data = output.get("data", {})
    return str(output.get("text") or data.get("text/markdown") or data.get("text/plain", ""))


def pictures(notebook: NotebookNode) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def accuracy(text: str) -> float:
    found = re.search(r"accuracy[^0-9]*([0-9.]+) ?%", text, flags=re.IGNORECASE)
    assert found, text
    return float(found[1])


@pytest.mark.parametrize("name", ["01_first_cell.ipynb", "03_keras.ipynb"])
def test_two_workers_learn_the_digits(pool: Path, name: str) -> None:
    begun = time.monotonic()
    notebook = run(name)
    text = printed(notebook)
    assert accuracy(text) >= 95
    assert pictures(notebook) >= 1
    assert "completed" in text
    assert time.monotonic() - begun < 240


def test_a_job_gives_a_slot_back_and_takes_it_again(pool: Path) -> None:
    text = printed(run("02_elastic_training.ipynb"))
    sizes = re.search(r"sizes: ([0-9, ]+)", text)
    assert sizes, text
    held = [int(size) for size in sizes[1].split(",")]
    assert ", ".join(map(str, held)).startswith("1, 2, 1, 2"), text
    assert accuracy(text) >= 95


def test_policies_are_compared(pool: Path) -> None:
    notebook = run("04_compare_policies.ipynb")
    assert pictures(notebook) >= 1
    assert "fifo" in printed(notebook)


def test_a_first_cell_leaves_a_finished_looking_page(pool: Path, tmp_path: Path) -> None:
    executed = tmp_path / "01.ipynb"
    papermill = [sys.executable, "-m", "papermill", "-k", "python3", "--cwd", str(EXAMPLES)]
    first = str(EXAMPLES / "01_first_cell.ipynb")
    subprocess.run([*papermill, first, str(executed)], check=True, timeout=280, capture_output=True)
    subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "html", str(executed)], check=True, timeout=120, capture_output=True
    )
    page = executed.with_suffix(".html").read_text()
    assert "completed" in page
    assert "<svg" in page


def test_a_policy_from_a_cell_lets_the_short_jobs_pass(pool: Path) -> None:
    text = printed(run("05_write_a_policy.ipynb"))
    assert "jobs would hold other slots under shortest_first" in text
    assert re.search(r"short: completed - shorter: completed - long: (queued|starting|running|stopping)", text), text
