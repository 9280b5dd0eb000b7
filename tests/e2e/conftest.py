"""A pool of its own for every module here: the daemon and agent that the first cell starts, ended at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pool import Pool


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The pool's state folder, in the environment of every kernel that a test starts; two CPU slots."""
    folder = tmp_path_factory.mktemp("pool")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_ELASTIC_DIR", str(folder))
        patch.setenv("JUPYTER_ELASTIC_SLOTS", "2")
        yield folder
        Pool(folder).stop()


@pytest.fixture(autouse=True)
def _no_job_goes_astray(pool: Path) -> None:
    assert os.environ["JUPYTER_ELASTIC_DIR"] == str(pool)
