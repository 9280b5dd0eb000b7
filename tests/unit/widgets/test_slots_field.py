"""What the field for a job's size takes, and what it says of the rest."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic import widgets

SOURCE = Path(widgets.__file__).parent / "frontend" / "src" / "slots.ts"
READ: dict[str, Any] = {
    "2": [2, 2],
    " 1:4 ": [1, 4],
    "0": "cancel it",
    "0:4": "cancel it",
    "4:1": "1:4",
    **dict.fromkeys(("", "x", "1:", ":4", "-1", "1.5", "1:2:3", "9" * 400, "\u0662"), "as in 1:4"),
}


def test_what_is_written_is_read_or_answered(tmp_path: Path) -> None:
    node = shutil.which("node", path=Path(sys.executable).parent)
    if node is None:
        pytest.skip("no Node.js")
    (tmp_path / "slots.ts").write_text(SOURCE.read_text())
    (tmp_path / "run.mts").write_text(
        "import { readSlots } from './slots.ts';"
        f"console.log(JSON.stringify({json.dumps(list(READ))}.map(readSlots)));"
    )
    ran = subprocess.run([node, "run.mts"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    found = dict(zip(READ, json.loads(ran.stdout or "[]"), strict=True))
    for text, expected in READ.items():
        assert expected == found[text] if isinstance(expected, list) else expected in found[text], (text, found[text])
        assert len(found[text]) < 120
