"""Warns when data that a cell has split by rank and size stay split as they were, although the group has changed.

A line before the training function runs once: it splits data for an old group. Only those lines of the cell are found
whose form leaves no doubt: slices, `i % world_size == rank`, and the functions in `_SPLIT`.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator

_RANK = frozenset({"rank", "get_rank", "RANK"})
_SIZE = frozenset({"size", "world_size", "get_world_size", "WORLD_SIZE"})
_SPLIT = frozenset({"shard", "islice", "split_dataset_by_node"})

_size = 0
"""Size of this worker's group in this cell; 0: no group yet, or its change was reported."""


def begin_cell() -> None:
    """Reset the group at the beginning of a cell."""
    global _size
    _size = 0


def joined(rank: int, size: int) -> None:
    """Record that the worker joins a group, in the thread of the cell."""
    global _size
    before, _size = _size, size
    if rank or before in {0, size} or not (line := _line_of_split()):
        return
    _size = 0
    sys.stderr.write(
        f"note: `{line}` has split the data for {before} workers, and {size} go on with those parts: samples are left "
        "out or come twice. Put the line into the function under @training.run, or give training.batches all the data\n"
    )


def _line_of_split() -> str:
    """Return the line of the cell that split data, above the present one, in the functions that are running."""
    frame = sys._getframe()
    while (outer := frame.f_back) is not None:
        frame, code = outer, outer.f_code
        if frame.f_globals.get("__name__") == "__main__" and (lines := linecache.getlines(code.co_filename)):
            text = "".join(lines)
            if "balance=" in text:  # then the training is about each worker's own samples
                return ""
            for body in _bodies(ast.parse(text), code.co_name, frame.f_lineno):
                for node in _run_once(body):
                    if node.lineno < frame.f_lineno and _splits(node):
                        return lines[node.lineno - 1].strip()
    return ""


def _bodies(tree: ast.Module, name: str, line: int) -> list[list[ast.stmt]]:
    """Return the bodies of the function of that name at that line, or of the module."""
    if name == "<module>":
        return [tree.body]
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [node.body for node in functions if node.name == name and node.lineno <= line <= (node.end_lineno or 0)]


def _run_once(nodes: list[ast.stmt]) -> Iterator[ast.expr]:
    """Yield all expressions, without those of functions that are only defined here."""
    waiting: list[ast.AST] = list(nodes)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.expr):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def _splits(node: ast.expr) -> bool:
    match node:
        case ast.Subscript(slice=ast.Slice()):
            where: ast.AST = node.slice
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _SPLIT:
            where = node
        case ast.Compare(left=ast.BinOp(op=ast.Mod())):
            where = node
        case _:
            return False
    names = {str(getattr(inner, kind, "")) for inner in ast.walk(where) for kind in ("id", "attr", "value")}
    return not (_RANK.isdisjoint(names) or _SIZE.isdisjoint(names))
