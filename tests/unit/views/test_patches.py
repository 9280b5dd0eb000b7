"""What a page is sent of a screen that it has: little, and with the page's own half of it exactly the new one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_elastic.views import patches
from jupyter_elastic.views.patches import patch

SOURCE = Path(patches.__file__).parents[1] / "widgets" / "frontend" / "src" / "patches.ts"
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=2)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=1), inner)
)


def patched(before: Any, change: Any) -> Any:
    """The twin of the page's."""
    if "v" in change:
        return change["v"]
    if "l" in change:
        drop, keep, rest = change["l"]
        return [*before[drop : drop + keep], *rest]
    after = dict(enumerate(before)) if isinstance(before, list) else dict(before)
    for key, part in change["k"].items():
        place = int(key) if isinstance(before, list) else key
        after[place] = patched(after.get(place), part)
    return list(after.values()) if isinstance(before, list) else after


@given(JSON, JSON)
@settings(max_examples=200, deadline=None)
def test_any_document_is_made_of_any_other(before: Any, after: Any) -> None:
    change = patch(before, after)
    assert (before if change is None else patched(before, change)) == after


def test_of_lines_that_move_up_the_new_ones_are_sent() -> None:
    lines = [["stdout", f"step {step}"] for step in range(203)]
    before = {"outputs": {"0": lines[:200]}, "screen": {"step": 199, "name": "a" * 500}}
    after = {"outputs": {"0": lines[3:]}, "screen": {"step": 202, "name": "a" * 500}}
    assert patch(before, after) == {
        "k": {"outputs": {"k": {"0": {"l": [3, 197, lines[200:]]}}}, "screen": {"k": {"step": {"v": 202}}}}
    }


def test_a_point_that_a_curve_gains_is_sent_alone() -> None:
    curves = [{"name": name, "points": [[x, 1.0] for x in range(240)], "last": "1"} for name in ("loss", "accuracy")]
    longer = [{**curves[0], "points": [*curves[0]["points"], [240, 0.5]]}, curves[1]]
    assert patch(curves, longer) == {"k": {"0": {"k": {"points": {"l": [0, 240, [[240, 0.5]]]}}}}}


def test_the_page_puts_together_what_was_sent(tmp_path: Path) -> None:
    node = shutil.which("node", path=Path(sys.executable).parent)
    if node is None:
        pytest.skip("no Node.js")
    documents: list[Any] = [
        {"job": {"outputs": {"0": [["stdout", "a"], ["stdout", "b"]], "1": []}, "metrics": [{"points": [1]}], "n": 1}},
        {
            "job": {
                "outputs": {"0": [["stdout", "b"], ["stdout", "c"]], "1": [["x", "y"]]},
                "metrics": [{"points": [1, 2]}],
            }
        },
        {"job": {"outputs": {"0": []}, "metrics": []}},
    ]
    changes = [patch(a, b) for a, b in zip([None, *documents], documents, strict=False)]
    (tmp_path / "patches.ts").write_text(SOURCE.read_text())
    program = (
        "import { patched } from './patches.ts'; let known; const made = [];"
        f"for (const change of {json.dumps(changes)}) made.push(known = patched(known, change));"
        "console.log(JSON.stringify(made));"
    )
    (tmp_path / "run.mts").write_text(program)
    ran = subprocess.run([node, "run.mts"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(ran.stdout or "null") == documents, ran.stderr
