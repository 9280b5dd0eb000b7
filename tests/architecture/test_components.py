"""A component of the front end has a file of its own, of its name."""

from __future__ import annotations

import re
from pathlib import Path

from jupyter_elastic import widgets

SOURCES = Path(widgets.__file__).parent / "frontend" / "src"
COMPONENT = re.compile(r"^(?:export )?(?:function|class|const) ([A-Z][a-z]\w*)\b", re.MULTILINE)
MAX_LINES = 300
GENERATED = "screens.ts"
ENTRIES = {"job_widget.tsx", "pool_widget.tsx"}
"""Modules of a kernel's widgets: they draw components and are none."""


def test_a_file_holds_one_component_and_has_its_name() -> None:
    files = [file for file in SOURCES.rglob("*.tsx") if file.name not in ENTRIES]
    assert len(files) > 40, "the test looks at the wrong folder"
    found = {str(file.relative_to(SOURCES)): COMPONENT.findall(file.read_text()) for file in files}
    assert found == {str(file.relative_to(SOURCES)): [file.stem] for file in files}


def test_no_file_is_long() -> None:
    lines = {str(file.relative_to(SOURCES)): len(file.read_text().splitlines()) for file in SOURCES.rglob("*.ts*")}
    assert {name: count for name, count in lines.items() if count > MAX_LINES and name != GENERATED} == {}
