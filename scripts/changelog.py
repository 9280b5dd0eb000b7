"""Write the fragments of `changes/` into CHANGELOG.md as the section of a version, and delete them.

`python scripts/changelog.py 0.2.0` takes today as the date of the release; a second argument names another one.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("added", "changed", "fixed", "removed")


def fragments(root: Path) -> dict[str, list[Path]]:
    """Return the files of `changes/` by kind, in the order of KINDS; raise ValueError for a file of no kind."""
    found: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in sorted((root / "changes").iterdir()):
        named = re.fullmatch(r"[\w-]+\.(\w+)\.md", path.name)
        if named is not None and named[1] in found:
            found[named[1]].append(path)
        elif path.name != "README.md":
            raise ValueError(
                f"changes/{path.name}: a fragment is named WORD.KIND.md, with a KIND of {', '.join(KINDS)}"
            )
    return {kind: paths for kind, paths in found.items() if paths}


def release(root: Path, version: str, date: str) -> None:
    """Add the section of `version` above the newest one of CHANGELOG.md, and delete the fragments.

    Raises:
        ValueError: there is no fragment, one has another kind, or the version has its section already.
    """
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text()
    found = fragments(root)
    if not found:
        raise ValueError("there is no fragment in changes/")
    if f"\n## {version} - " in text:
        raise ValueError(f"CHANGELOG.md has a section of {version} already")
    lines = [f"## {version} - {date}", ""]
    for kind, paths in found.items():
        entries = ["- " + path.read_text().strip().replace("\n", "\n  ") for path in paths]
        lines += [f"### {kind.capitalize()}", "", *entries, ""]
    before, heading, after = text.partition("\n## ")
    changelog.write_text(before + "\n" + "\n".join(lines) + heading + after)
    for path in (path for paths in found.values() for path in paths):
        path.unlink()


if __name__ == "__main__":
    try:
        release(ROOT, sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else time.strftime("%Y-%m-%d"))
    except (IndexError, ValueError) as error:
        sys.exit(str(error) if isinstance(error, ValueError) else __doc__)
