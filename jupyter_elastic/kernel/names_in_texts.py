"""Finds names of the notebook that stand within a cell's texts only: `df.query("a > @limit")`, SQL over data frames."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

_AFTER_AT = re.compile(r"@([^\W\d]\w*)")
_TABLE = re.compile(r"(?i)\b(?:from|join)\s+([^\W\d]\w*)")
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*(?!\w|\s*\()")

_QUERY, _SQL = {"query", "eval"}, {"sql", "query", "execute"}
_WHOLE = {"eval": "pandas.eval", "evaluate": "numexpr.evaluate"}


def found(source: str, uses: Collection[str]) -> Iterator[tuple[str, bool]]:
    """Yield names that calls in a cell read from their texts, and whether each must be a table.

    `uses` are the dotted names that the cell uses, which tell the library of a call.
    """
    nodes = list(ast.walk(ast.parse(source)))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    sql = _SQL if any(name.startswith(("duckdb", "polars")) for name in uses) else set()
    for call in nodes:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            parts = [part.value for value in given for part in ast.walk(value) if isinstance(part, ast.Constant)]
            text, called = " ".join(part for part in parts if isinstance(part, str)), call.func.attr
            whole = _WHOLE.get(called) in uses
            for pattern, fits in ((_AFTER_AT, called in _QUERY), (_NAME, whole), (_TABLE, called in sql)):
                yield from ((name, pattern is _TABLE) for name in pattern.findall(text) if fits and name not in own)
