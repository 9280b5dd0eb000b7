"""One pool and one Jupyter server for the folder's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.guests import environment, opened
from tests.support.lab import Lab, clean_environment
from tests.support.pool import Pool


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory, who: str) -> Iterator[Pool]:
    with opened(Pool(tmp_path_factory.mktemp("pool") / "pool"), who) as pool:
        yield pool


@pytest.fixture(autouse=True)
def whole_again(pool: Pool) -> Iterator[None]:
    """Whatever a test did to the pool, the next finds it up and empty."""
    yield
    pool.mend()


@pytest.fixture(scope="module")
def server(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    env = clean_environment(**environment(pool), PATH=os.environ["PATH"])
    with Lab(tmp_path_factory.mktemp("server"), env, module="jupyter_server") as lab:
        pool.until(lambda: lab.api("elastic/api/health")["down_since"] is None, "the extension finds the pool")
        yield lab
