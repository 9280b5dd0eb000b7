"""A name means one thing: no two public classes of one name, no two modules of one name outside of engines' folders."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "jupyter_elastic"
ENGINES = PACKAGE / "engines"
CLASSES = {
    "FrameworkGroup": "Horovod's group for torch and for TensorFlow, taken from the framework's module",
    "Job": "what a person holds in a notebook, and the daemon's record of it",
    "State": "what a training commits, and what the daemon knows",
}
"""Public classes of which there may be two, and why."""
MODULES = {"state": "of the daemon's core, and of a training"}


def _sources() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if "node_modules" not in path.parts]


def test_each_public_class_has_a_name_of_its_own() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in _sources():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: where for name, where in found.items() if len(where) > 1 and name not in CLASSES} == {}
    assert {name for name in CLASSES if len(found[name]) < 2} == set(), "there is one of each now: take it off the list"


def test_each_module_has_a_name_of_its_own() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in _sources():
        if not path.is_relative_to(ENGINES) and not path.name.startswith("__"):
            found[path.stem].append(str(path.relative_to(PACKAGE)))
    assert {name: where for name, where in found.items() if len(where) > 1 and name not in MODULES} == {}
