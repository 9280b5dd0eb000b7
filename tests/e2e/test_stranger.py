"""A notebook that nobody prepared, run by `jupyter execute`: the right values come back into it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.support.marks import everything

TORCH = """%%distribute --gpus 2 --engine horovod --out total
import torch
import horovod.torch as hvd

hvd.init()
total = float(hvd.allreduce(torch.tensor(float(hvd.rank() + x)), op=hvd.Sum))
"""
TENSORFLOW = """%%distribute --gpus 2 --engine horovod --out total
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
total = float(hvd.allreduce(tf.constant(float(hvd.rank() + x)), op=hvd.Sum))
"""


def execute(folder: Path, *cells: str) -> tuple[int, str, list[str]]:
    """Exit code, what was said, and the text outputs of the notebook that `jupyter execute` left."""
    path = folder / "stranger.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path)
    done = subprocess.run(
        [sys.executable, "-m", "jupyter", "execute", "--inplace", "--kernel_name=python3", str(path)],
        capture_output=True, text=True, check=False, timeout=280, cwd=folder,
    )  # fmt: skip
    notebook = nbformat.read(path, as_version=4)
    texts = [
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]
    return done.returncode, done.stdout + done.stderr, texts


@pytest.mark.parametrize("cell", [TORCH, pytest.param(TENSORFLOW, marks=everything)], ids=["torch", "tensorflow"])
def test_an_all_reduce_over_a_captured_name(pool: Path, tmp_path: Path, cell: str) -> None:
    code, said, texts = execute(tmp_path, "%load_ext jupyter_elastic\nx = 20.5", cell, "print('total is', total)")
    assert code == 0, said
    assert "total is 42.0" in "".join(texts)
    assert any("completed" in text for text in texts), texts


def test_a_cell_that_fails_fails_the_notebook_with_its_own_traceback(pool: Path, tmp_path: Path) -> None:
    cell = "%%distribute --gpus 2 --engine process\nnumber = 1\nif rank == 1:\n    number / 0\n"
    code, said, _ = execute(tmp_path, "%load_ext jupyter_elastic", cell)
    assert code != 0
    assert "ZeroDivisionError" in said
    assert "number / 0" in said


def test_more_than_the_pool_has_is_refused_at_once(pool: Path, tmp_path: Path) -> None:
    code, said, _ = execute(tmp_path, "%load_ext jupyter_elastic", "%%distribute --gpus 3\nprint(rank)")
    assert code != 0
    assert "2 CPU slots" in said
