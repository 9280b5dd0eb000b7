"""What newcomers of a session get: named variables, and the session's code, which reads the newcomer's own names."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.training import share
from jupyter_elastic.training.share import names as shared
from jupyter_elastic.training.state import commits_of
from jupyter_elastic.types.errors import BadRequest
from jupyter_elastic.worker import hand_over

CELL = """
import math
import threading
from jupyter_elastic import training
class Scale:
    def __init__(self): self.value = factor
    def of(self, x): return x * self.value + math.floor(offset)
def helper(x): return made.of(x) + rank
@training.run
def train(state): return helper(1)
factor, offset, made, huge, rank = 3, 0.5, None, threading.Lock(), 0
made = Scale()
state = training.State(count=7)
"""


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A session's, after a cell; the names that were shared are forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found: dict[str, Any] = {"os": os, "__name__": "__main__", "share": share}
    exec(CELL, found)
    yield found
    shared.clear()


def newcomer(folder: Path) -> dict[str, Any]:
    """The namespace that a newcomer begins with."""
    shared.clear()
    found: dict[str, Any] = {}
    hand_over.read(folder, found)
    return found


def test_a_newcomer_has_what_was_named_and_functions_that_read_its_own_names(
    namespace: dict[str, Any], tmp_path: Path
) -> None:
    exec("share(made, state, 'offset', 'factor')", namespace)
    assert hand_over.write(tmp_path, namespace, "train(state)", ("train", "state")) == ""
    kept = list(shared)
    there = newcomer(tmp_path)
    assert list(shared) == kept == ["made", "state", "offset", "factor"]
    assert "huge" not in there
    assert "rank" not in there
    there["rank"] = 5
    assert there["helper"](1) == 8
    assert there["state"].count == 7
    assert commits_of(there["state"])._fresh
    assert there["train"](there["state"]) == 8  # decorated by the newcomer's own training.run
    there["made"] = there["Scale"].__new__(there["Scale"])
    there["made"].value = 0
    assert there["helper"](1) == 5


def test_what_newcomers_would_lack_is_said(namespace: dict[str, Any], tmp_path: Path) -> None:
    reads = ("train", "state", "factor")
    assert "is not named" in hand_over.write(tmp_path, namespace, "train(state)", reads)
    exec("share(state)", namespace)
    assert hand_over.write(tmp_path, namespace, "train(state)", reads) == (
        "newcomers would lack factor, made: name them by training.share"
    )
    exec("share(made, 'factor')", namespace)
    assert hand_over.write(tmp_path, namespace, "train(state)", reads) == (
        "newcomers would lack offset: name it by training.share"
    )
    exec("share('offset', huge)", namespace)
    assert hand_over.write(tmp_path, namespace, "train(state)", reads).startswith("huge can't be handed over")
    assert not (tmp_path / hand_over.FILE).exists()


def test_only_variables_of_the_cell_are_shared(namespace: dict[str, Any]) -> None:
    for call, problem in (
        ("share(3)", "give the variable's name"),
        ("share('nothing')", "'nothing' is no variable of this cell"),
        ("share(object())", "a object is no variable"),
    ):
        with pytest.raises(BadRequest, match=problem):
            exec(call, namespace)
