"""The list of guards that `scripts/guards.py` removes one by one is the code's, and each has a test."""

from __future__ import annotations

import ast
import gc
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("guards", ROOT / "scripts" / "guards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["guards"] = module  # a NamedTuple looks its annotations up there
    spec.loader.exec_module(module)
    return module


guards = _load()


@pytest.fixture(autouse=True)
def _nothing_is_collected() -> Iterator[None]:
    """What garbage complains of while a file is parsed is parsed too, for the report: CPython 3.11 can't do both."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("guard", guards.GUARDS, ids=lambda guard: guard.what)
def test_a_guard_stands_where_the_list_says_and_has_a_test(guard) -> None:
    ast.parse(guard.removed(ROOT))
    file, _, name = guard.test.partition("::")
    assert name.partition("[")[0] in {
        node.name for node in ast.walk(ast.parse((ROOT / "tests" / file).read_text())) if hasattr(node, "name")
    }


def test_a_guard_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "jupyter_elastic").mkdir()
    (tmp_path / "jupyter_elastic" / "x.py").write_text("pass\npass\n")
    for old, count in (("pass", 2), ("if", 0)):
        guard = guards.Guard("what it keeps", "x.py", old, "", "none.py::none")
        with pytest.raises(ValueError, match=f"what it keeps: x.py has it {count} times, not once"):
            guard.removed(tmp_path)
