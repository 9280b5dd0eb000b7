"""Refuse lines of prose over 100 columns in the repository's Markdown files.

Code, tables, headings, HTML and the targets of links do not count. A sentence begins a new line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100


def too_long(text: str) -> list[int]:
    """Return the numbers of the lines of a page whose prose is wider than COLUMNS."""
    found, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*(```|~~~)", line):
            fenced = not fenced
        elif not fenced and not re.match(r"    |\s*[|<#]|\[[^\]]+\]: ", line):
            prose = re.sub(r"\]\([^)]*\)", "]()", re.sub(r"!\[[^\]]*\]\([^)]*\)", "", line))
            if len(prose) > COLUMNS:
                found.append(number)
    return found


def pages(root: Path) -> list[Path]:
    """Return the Markdown files that are in the repository, or are new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [path for name in sorted({*names.split("\0")} - {""}) if (path := root / name).exists()]


if __name__ == "__main__":
    lines = [f"{path.relative_to(ROOT)}:{number}" for path in pages(ROOT) for number in too_long(path.read_text())]
    if lines:
        sys.exit("\n".join([*lines, f"These lines are over {COLUMNS} columns: a sentence begins a new line."]))
