"""The front end's constants and generated types are those of the Python package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jupyter_elastic
from jupyter_elastic import widgets
from jupyter_elastic.views import timeline_page

SOURCE = Path(widgets.__file__).parent / "frontend" / "src"
SCRIPT = Path(__file__).parents[3] / "scripts" / "screen_types.py"


def test_the_types_of_the_screens_are_what_the_structs_say() -> None:
    ran = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_page_knows_its_version() -> None:
    (version,) = re.findall(r"VERSION = '([^']+)'", (SOURCE / "version.ts").read_text())
    assert version == jupyter_elastic.__version__


def test_a_job_has_the_same_colour_in_a_page_and_in_a_saved_file() -> None:
    (listed,) = re.findall(r"PALETTE = \[(.*?)\]", (SOURCE / "timeline.ts").read_text())
    assert tuple(re.findall(r"'(#\w+)'", listed)) == timeline_page.PALETTE
