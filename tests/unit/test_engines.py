"""Which engine a cell gets, and what is said of one that it can't have."""

from __future__ import annotations

import importlib.util

import pytest

from jupyter_elastic.engines.workers import WorkersEngine
from jupyter_elastic.kernel.submission import choose_engine
from jupyter_elastic.types.errors import BadRequest


def test_an_engine_that_is_not_built_is_refused_before_anything_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(BadRequest, match="build-horovod"):
        choose_engine("horovod")
    assert choose_engine("process") == "process"


def test_an_engine_that_starts_nothing_anew_is_refused_for_a_resumable_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine("process", resumable=True) == "process"
    monkeypatch.delattr(WorkersEngine, "resumable")
    with pytest.raises(BadRequest, match="--resumable: the engine process can't"):
        choose_engine("process", resumable=True)


def test_an_engine_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(BadRequest, match=r"installed are .*process"):
        choose_engine("carrier-pigeon")
