"""Finds environment variables that a cell sets and that frameworks read when they are imported.

Workers are forked from processes that have the frameworks loaded, so such a variable must be known before the fork.
Knows syntax trees; runs and imports nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_READERS: dict[str, frozenset[str]] = {
    "KERAS_": frozenset({"keras"}),
    "TF_USE_LEGACY_KERAS": frozenset({"keras", "tf_keras"}),  # read when `tf.keras` is first used
    "TF_": frozenset({"tensorflow"}),
    "TF2_": frozenset({"tensorflow"}),
    "XLA_": frozenset({"tensorflow", "jax"}),
    "JAX_": frozenset({"jax"}),
    "TORCH_": frozenset({"torch"}),
    "OMP_": frozenset({"torch", "tensorflow"}),
    "MKL_": frozenset({"torch", "tensorflow"}),
    "KMP_": frozenset({"torch", "tensorflow"}),
    "NUMEXPR_": frozenset({"numexpr"}),
}
"""Packages that read a variable, by the start of the variable's name. The first match counts."""
_LOADS = {
    "horovod.torch": {"torch"},
    "horovod.tensorflow": {"tensorflow"},
    "horovod.keras": {"keras", "tensorflow"},
    "tensorflow.keras": {"tensorflow", "keras"},
    "lightning": {"torch"},
    "pytorch_lightning": {"torch"},
    "accelerate": {"torch"},
    "transformers": {"torch"},
}
"""Packages that other packages or modules load."""


def readers(variable: str) -> frozenset[str]:
    """Return the packages that read this variable when they are loaded; none for all others."""
    return next((names for start, names in _READERS.items() if variable.startswith(start)), frozenset())


def set_before_loading(tree: ast.Module) -> dict[str, tuple[str, bool]]:
    """Return variables that a framework reads and the cell surely sets to a constant before importing the framework.

    The dict maps a variable to its value and whether it only replaces a missing one (`setdefault`).
    """
    found: dict[str, tuple[str, bool]] = {}
    loaded: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for name, value, default in settings(statement):
            known = readers(name)
            if known and not known & loaded and not (default and name in found):
                found[name] = (value, default)
        loaded |= {package for node in ast.walk(statement) for package in _loads(node)}
    return found


def settings(statement: ast.stmt) -> Iterator[tuple[str, str, bool]]:
    """Yield variables that this statement sets to a constant: name, value, and whether only if missing."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=place, slice=ast.Constant(value=str(name)))], value=value):
            if _is_environ(place):
                yield from _constants([(name, value)])
        case ast.AugAssign(target=place, op=ast.BitOr(), value=ast.Dict() as more):
            if _is_environ(place):
                yield from _constants(_items(more))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=place, attr=method), args=args, keywords=keywords)):
            if method == "putenv":
                yield from _constants(_pair(args))
            elif _is_environ(place):
                if method in {"setdefault", "__setitem__"}:
                    yield from _constants(_pair(args), default=method == "setdefault")
                elif method == "update":
                    yield from _constants([item for arg in args if isinstance(arg, ast.Dict) for item in _items(arg)])
                    yield from _constants(
                        [(keyword.arg, keyword.value) for keyword in keywords if keyword.arg is not None]
                    )


def _constants(pairs: list[tuple[str, ast.expr]], *, default: bool = False) -> Iterator[tuple[str, str, bool]]:
    for name, value in pairs:
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and "\0" not in value.value:
            yield name, value.value, default


def _pair(args: list[ast.expr]) -> list[tuple[str, ast.expr]]:
    match args:
        case [ast.Constant(value=str(name)), value]:
            return [(name, value)]
    return []


def _items(literal: ast.Dict) -> list[tuple[str, ast.expr]]:
    pairs = zip(literal.keys, literal.values, strict=True)
    return [(key.value, value) for key, value in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def _is_environ(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def _loads(node: ast.AST) -> Iterator[str]:
    """Yield the packages that an import loads: its top package, and those that the package is known to load."""
    modules: list[str] = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    for module in modules:
        yield module.split(".", 1)[0]
        for start, packages in _LOADS.items():
            if module == start or module.startswith(start + "."):
                yield from packages
