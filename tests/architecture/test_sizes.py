"""A module has at most 450 lines, a class at most 300 lines and 25 methods. Ruff counts what a function has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE, CLASS, METHODS = 450, 300, 25


def _sources() -> Iterator[tuple[str, str]]:
    for folder in (ROOT / "jupyter_elastic", ROOT / "plugins"):
        for path in folder.rglob("*.py"):
            if "node_modules" not in path.parts:
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_no_module_is_longer() -> None:
    assert [name for name, text in _sources() if text.count("\n") > MODULE] == []


def test_no_class_is_longer_or_has_more_methods() -> None:
    found = []
    for name, text in _sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                methods = sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body)
                if lines > CLASS or methods > METHODS:
                    found.append(f"{name}: {node.name} has {lines} lines and {methods} methods")
    assert found == []
