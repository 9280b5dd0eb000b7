"""A pool of its own for every module here: the daemon and agent that the first cell starts, ended at the end."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jupyter_elastic import connection


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The pool's state folder, in the environment of every kernel that a test starts; two CPU slots."""
    folder = tmp_path_factory.mktemp("pool")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_ELASTIC_DIR", str(folder))
        patch.setenv("JUPYTER_ELASTIC_SLOTS", "2")
        yield folder
        end_pool()


def end_pool() -> None:
    """End the daemon and the agent of the pool that the environment names, by pid and start time."""
    for name in ("daemon.json", "agent.json"):
        with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
            said = json.loads((connection.runtime_dir() / name).read_text())
            process = psutil.Process(said["pid"])
            if abs(process.create_time() - said["start_time"]) < 0.01:
                process.terminate()
                with contextlib.suppress(psutil.TimeoutExpired):
                    process.wait(20)


@pytest.fixture(autouse=True)
def _no_job_goes_astray(pool: Path) -> None:
    assert os.environ["JUPYTER_ELASTIC_DIR"] == str(pool)
