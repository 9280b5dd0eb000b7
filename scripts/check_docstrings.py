"""Refuses docstrings that begin with a riddle: with who, what, which, whether, it, those, so long, how often, of.

    python scripts/check_docstrings.py [FOLDER ...]

Looks at the texts of modules, classes and functions and at those below attributes and constants.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

RIDDLE = re.compile(
    r"(who|whom|whose|what|which|where|whether|it|its|those|these|they|of|the same|as long|as many|in its"
    r"|so (long|many|much|often|few|far)|how (long|many|much|often|few|far)|(until|from|since) when|for (how|so))\b",
    re.IGNORECASE,
)


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string that stands as a statement of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def main(folders: list[str]) -> int:
    """Print each such text; the exit status is 1 if there are any."""
    found = 0
    for folder in folders or ["jupyter_elastic"]:
        for path in sorted(Path(folder).rglob("*.py")):
            if "node_modules" in path.parts:
                continue
            for line, text in texts(ast.parse(path.read_text())):
                if RIDDLE.match(text):
                    found += 1
                    print(f"{path}:{line}: begin with a verb and its object: {text.splitlines()[0][:100]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
