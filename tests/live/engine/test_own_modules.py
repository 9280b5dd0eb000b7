"""A script finds its folder's modules before those of Python, as under `python`, whatever the workers have loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jupyter_elastic.engines.process import Process
from tests.live.engine.bench import Bench, asynchronous
from tests.live.engine.test_main_module import rewrite
from tests.support.pool import LIMIT_S

OWN = ("secrets", "calendar", "statistics", "queue", "platform", "uuid", "fractions", "abc", "os", "io", "time", "mine")
"""The folder's modules: `python` has loaded some of these before any script, or has them built in."""
PACKAGES = ("http", "xml", "numpy")
LOOK = f"""
import importlib, sys
for name in {(*OWN, *PACKAGES, "logging", "json")!r}:
    print(name, getattr(importlib.import_module(name), "MINE", "Python's"))
import http.own
print(http.own.MINE, sys.modules["http"] is http)
"""


@asynchronous
async def test_a_script_imports_its_folders_modules(folder: Path, tmp_path: Path) -> None:
    here = tmp_path / "scripts"
    for package in PACKAGES:
        (here / package).mkdir(parents=True)
        (here / package / "__init__.py").write_text("MINE = 'a package'\n")
    (here / "http" / "own.py").write_text("MINE = 'within'\n")
    (here / "logging").mkdir()  # without `__init__.py` Python's own goes before it
    for name in OWN:
        (here / f"{name}.py").write_text("MINE = 'the folder'\n")
    (here / "look.py").write_text(LOOK)
    ran = subprocess.run(  # noqa: ASYNC221 - nothing else runs yet
        [sys.executable, here / "look.py"], capture_output=True, text=True, check=True, timeout=LIMIT_S, cwd=tmp_path
    )
    assert "secrets the folder\n" in ran.stdout
    assert "os Python's\n" in ran.stdout
    async with Bench(Process, folder, LOOK, warm=False, argv=("look.py",)) as bench:
        rewrite(folder, filename=str(here / "look.py"), sys_path=(str(here), *sys.path))
        await bench.launch("h:0")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert bench.text(0) == ran.stdout
