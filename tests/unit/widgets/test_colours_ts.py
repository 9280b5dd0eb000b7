"""The colours of users: few of them are far apart, many still differ."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_elastic import widgets

SOURCE = Path(widgets.__file__).parent / "frontend" / "src" / "format.ts"
MANY = ["ada", "alice", "bob", "carol", "dave", "eve", "grace", "linus", "mallory", "root", "trent", "walter"]


@pytest.mark.parametrize(
    ("users", "least"), [(["grace", "linus"], 60), (["alice", "carol", "dave"], 60), (MANY[5:11], 60), (MANY, 30)]
)
def test_up_to_six_users_are_60_degrees_apart_and_twelve_30(tmp_path: Path, users: list[str], least: int) -> None:
    node = shutil.which("node", path=Path(sys.executable).parent)
    if node is None:
        pytest.skip("no Node.js")
    (tmp_path / "format.ts").write_text(SOURCE.read_text())
    (tmp_path / "run.mts").write_text(
        f"import {{ palette }} from './format.ts'; const users = {json.dumps(users)};"
        "console.log(JSON.stringify(users.map(user => palette(users)(user, 1))));"
    )
    ran = subprocess.run([node, "run.mts"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    hues = [
        float(re.findall(r"([\d.]+)\)$", colour)[0]) for colour in json.loads(ran.stdout or pytest.fail(ran.stderr))
    ]
    apart = [min(abs(a - b), 360 - abs(a - b)) for a, b in itertools.combinations(hues, 2)]
    assert min(apart) >= least, dict(zip(users, hues, strict=True))
