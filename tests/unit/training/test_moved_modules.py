"""Modules that moved are found by their old names: cells say them, and commits of running jobs hold them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from jupyter_elastic.training import commit_blob
from jupyter_elastic.training.moved_modules import MOVED

COMMIT = Path(__file__).parents[2] / "data" / "commit_before_the_frameworks_moved.bin"
"""Written by `State.encoded` of a linear model and SGD with momentum, when `training.torch` was a module of its own."""


def test_a_commit_of_that_time_is_read() -> None:
    plain, parts = commit_blob.unpack(COMMIT.read_bytes())
    assert (plain["values"]["epoch"], plain["values"]["best"]) == (3, 0.5)
    weight = parts["model"]["weight"]
    assert type(weight).__module__ == "jupyter_elastic.training.frameworks.torch"
    assert np.allclose(weight.data, [[-0.405294, -0.02067712]])


def test_an_old_name_is_the_same_module_whichever_is_imported_first() -> None:
    text = (
        "import jupyter_elastic.training.{old} as old, importlib\n"
        "new = importlib.import_module({new!r})\n"
        "assert old is new and new.__spec__.name == {new!r}, (old, new.__spec__)\n"
    )
    folder = "jupyter_elastic.training."
    light = (
        "jupyter_elastic.training.session",
        "jupyter_elastic.training.torch",
        "jupyter_elastic.training.local_shards",
    )
    texts = [text.format(old=old.removeprefix(folder), new=MOVED[old]) for old in light]
    done = subprocess.run([sys.executable, "-c", "\n".join(texts)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
