"""What waits for work goes once through what it will do, and leaves nothing on the disk, not even for a moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_elastic.platform import paths

NO_DISK = """
import pathlib, sys, tempfile
from jupyter_elastic.platform import paths
tempfile.tempdir, paths.SHARED_MEMORY = "/nowhere", pathlib.Path(sys.argv[1])
"""


@pytest.mark.parametrize(
    "rehearsal",
    [
        "from jupyter_elastic.worker import worker; worker.prepare(); worker.rehearse()",
        "from jupyter_elastic.driver import driver; driver.preload(); driver.prepare().close()",
        "from jupyter_elastic.forkserver import drivers; drivers._LateFile()",
    ],
)
def test_a_rehearsal_stays_in_memory(tmp_path: Path, rehearsal: str) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    command = [sys.executable, "-c", NO_DISK + rehearsal, str(memory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(memory.iterdir())


def test_without_shared_memory_the_usual_place_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "SHARED_MEMORY", paths.SHARED_MEMORY / "not there")
    assert paths.passing_dir() is None
