"""One warm pool for all tests of engines, ended with them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_elastic.platform import paths, processes


@pytest.fixture(scope="session", autouse=True)
def warm_pool() -> Iterator[None]:
    """A pool folder that all these tests share: the frameworks are imported once."""
    before = os.environ.get("JUPYTER_ELASTIC_DIR")
    with tempfile.TemporaryDirectory(prefix="engine-pool-") as folder:
        os.environ["JUPYTER_ELASTIC_DIR"] = folder
        runtime = paths.runtime_dir()
        yield
        for lock in runtime.glob("workers-*.lock"):
            pid, start_time, *_ = json.loads(lock.read_text())
            processes.send((pid, start_time), signal.SIGKILL)
        shutil.rmtree(runtime)
        if before is None:
            del os.environ["JUPYTER_ELASTIC_DIR"]
        else:
            os.environ["JUPYTER_ELASTIC_DIR"] = before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The job's folder."""
    path = tmp_path / "job"
    path.mkdir(mode=0o700)
    return path
