"""What waits for work goes once through what it will do, and leaves nothing on the disk, not even for a moment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jupyter_elastic import connection

NO_DISK = "import tempfile; tempfile.tempdir = '/nowhere'\n"


@pytest.mark.parametrize(
    "rehearsal",
    [
        "from jupyter_elastic.agent import worker; worker.prepare(); worker.rehearse()",
        "from jupyter_elastic.agent import driver; driver.preload(); driver.prepare().close()",
        "from jupyter_elastic.agent import nursery; nursery._LateFile()",
    ],
)
def test_a_rehearsal_stays_in_memory(rehearsal: str) -> None:
    if connection.passing_dir() is None:
        pytest.skip("this machine has no shared memory")
    before = set(connection.SHARED_MEMORY.iterdir())
    done = subprocess.run([sys.executable, "-c", NO_DISK + rehearsal], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    commits = connection.SHARED_MEMORY / f"jupyter-elastic-{os.getuid()}"
    assert not {path for path in connection.SHARED_MEMORY.glob("jupyter-elastic-*") if path != commits} - before


def test_without_shared_memory_the_usual_place_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SHARED_MEMORY", connection.SHARED_MEMORY / "not there")
    assert connection.passing_dir() is None
