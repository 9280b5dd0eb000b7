"""Engines of worker processes differ by public hooks alone, and the parts of what runs them are small."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

ENGINES = Path(__file__).parents[2] / "jupyter_elastic" / "engines"
DRIVERS = ("process", "torch.driver", "horovod.driver", "tensorflow_ps.driver", "functions.driver")
COMMON = sorted((ENGINES / "common").glob("*.py"))


def test_no_engine_overrides_a_private_method_of_another_class() -> None:
    found = []
    for name in (*DRIVERS, "common.group_engine", "common.workers_engine"):
        module = importlib.import_module(f"jupyter_elastic.engines.{name}")
        for _, engine in inspect.getmembers(module, inspect.isclass):
            own = {method for method in vars(engine) if method.startswith("_") and not method.startswith("__")}
            for base in engine.__mro__[1:]:
                if base.__module__.startswith("jupyter_elastic."):
                    found += [f"{engine.__name__}.{method}" for method in own if callable(vars(base).get(method))]
    assert sorted(set(found)) == []


def test_no_engine_uses_a_private_name_that_it_does_not_define() -> None:
    found = []
    for name in (*DRIVERS, "common.group_engine"):
        tree = ast.parse((ENGINES / f"{name.replace('.', '/')}.py").read_text())
        for engine in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            attributes = [node for node in ast.walk(engine) if isinstance(node, ast.Attribute)]
            stored = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
            own = {node.name for node in engine.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            own |= {node.targets[0].id for node in engine.body if isinstance(node, ast.Assign)}
            used = {node.attr for node in attributes if node.attr.startswith("_") and not node.attr.startswith("__")}
            found += [f"{engine.name}.{name}" for name in used - stored - own]
    assert sorted(found) == []


def test_the_parts_that_engines_share_are_small() -> None:
    big = []
    for path in COMMON:
        text = path.read_text()
        big += [path.name] if len(text.splitlines()) > 450 else []
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
                lines = (node.end_lineno or 0) - node.lineno
                big += [node.name] if lines > 300 or len(methods) > 25 else []
    assert big == []
