"""A patch of a module that is imported later."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from jupyter_elastic.platform.imports import after_import


def test_a_patch_comes_after_the_import_however_often_somebody_looked(monkeypatch, tmp_path) -> None:
    (tmp_path / "patched_later.py").write_text("seen = []")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for word in ("first", "second"):
        after_import("patched_later", lambda module, word=word: module.seen.append(word))
    assert importlib.util.find_spec("patched_later") is not None  # a look, as TensorFlow takes one at Keras
    try:
        assert importlib.import_module("patched_later").seen == ["first", "second"]
        after_import("patched_later", lambda module: module.seen.append("now"))
        assert sys.modules["patched_later"].seen[-1] == "now"
    finally:
        sys.modules.pop("patched_later", None)


def test_a_module_that_is_nowhere_stays_nowhere(monkeypatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    after_import("no_such_module", lambda module: None)
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module")
