"""Warm workers that the tests of this folder share."""

from __future__ import annotations

import contextlib
import os

import psutil
import pytest

pytest.importorskip("horovod", reason="Horovod is not built in this environment")


@pytest.fixture(scope="session")
def warm_workers(tmp_path_factory):
    """A private pool of warm workers; its processes are known by their environment and ended with the session."""
    folder = str(tmp_path_factory.mktemp("training") / "pool")
    before = os.environ.get("JUPYTER_ELASTIC_DIR")
    os.environ["JUPYTER_ELASTIC_DIR"] = folder
    yield
    if before is None:
        del os.environ["JUPYTER_ELASTIC_DIR"]
    else:
        os.environ["JUPYTER_ELASTIC_DIR"] = before
    end_pool(folder)


def end_pool(folder):
    """End the processes of a pool in this folder, which outlive who started them."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("JUPYTER_ELASTIC_DIR") == folder:
                process.kill()
