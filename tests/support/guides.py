"""Follows a guide of the documentation to the letter: its files, installed as `pip` would."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def follow(guide: str, module: str, folder: Path, *others: str) -> None:
    """Write the files of a guide, and what an installation would make of its `pyproject.toml`.

    `others` are the modules after the first; without any they are tests.
    """
    page = (DOCS / f"{guide}.md").read_text()
    texts = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = [module, *(others or (f"test_{number}" for number in range(len(texts) - 1)))]
    for name, text in zip(names, texts, strict=True):
        (folder / f"{name}.py").write_text(text)
    project = tomllib.loads(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])["project"]
    metadata = folder / f"{module}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (metadata / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
            for group, entries in project["entry-points"].items()
        )
    )


def python(folder: Path, *arguments: str) -> str:
    """What it prints, with the folder's packages installed."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
