"""Which of the labels in a picture are drawn: none that covers another one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic import widgets

SOURCE = Path(widgets.__file__).parent / "frontend" / "src" / "timeline.ts"


def box(x: float, y: float) -> dict[str, float]:
    return {"x": x, "y": y, "width": 30, "height": 12}


CASES: list[tuple[str, list[list[Any]], list[Any], list[Any]]] = [
    ("two that touch are both drawn", [[box(0, 0)], [box(30, 0)]], [], [box(0, 0), box(30, 0)]),
    ("of two short bars side by side the first", [[box(0, 0)], [box(20, 0)]], [], [box(0, 0), None]),
    ("below one another both", [[box(0, 0)], [box(0, 12)]], [], [box(0, 0), box(0, 12)]),
    ("a further place where the first is taken", [[box(0, 0)], [box(5, 5), box(5, 20)]], [], [box(0, 0), box(5, 20)]),
    ("no number of a bar is covered", [[box(10, 0)]], [box(0, 4)], [None]),
    ("what is not drawn covers nothing", [[box(0, 0)], [box(20, 0)], [box(40, 0)]], [], [box(0, 0), None, box(40, 0)]),
    ("no place at all", [[]], [], [None]),
]  # fmt: skip


def test_no_label_covers_another(tmp_path: Path) -> None:
    node = shutil.which("node", path=Path(sys.executable).parent)
    if node is None:
        pytest.skip("no Node.js")
    (tmp_path / "timeline.ts").write_text(SOURCE.read_text())
    given = json.dumps([[labels, taken] for _, labels, taken, _ in CASES])
    (tmp_path / "run.mts").write_text(
        "import { placeLabels } from './timeline.ts';"
        f"console.log(JSON.stringify({given}.map(one => placeLabels(...one))));"
    )
    ran = subprocess.run([node, "run.mts"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    for (name, _, _, expected), found in zip(CASES, json.loads(ran.stdout or "[]"), strict=True):
        assert found == expected, name
