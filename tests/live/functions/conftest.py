"""A pool of two slots whose jobs grow and shrink, and functions that use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_elastic.client.functions import Functions
from jupyter_elastic.protocol.wire import SwitchPolicy
from tests.support.pool import Pool


@pytest.fixture(scope="module")
def lasting_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool(tmp_path_factory.mktemp("functions") / "pool", slots=2) as pool:
        pool.client.ask(SwitchPolicy(name="elastic_fifo"))
        yield pool


@pytest.fixture
def pool(lasting_pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """The module's pool, as the one that this process uses."""
    for name in ("JUPYTER_ELASTIC_DIR", "JUPYTER_ELASTIC_SLOTS"):
        monkeypatch.setenv(name, lasting_pool.env[name])
    yield lasting_pool
    lasting_pool.mend()


@pytest.fixture
def functions(pool: Pool) -> Iterator[Functions]:
    found = Functions()
    yield found
    found.shutdown(wait=False, cancel_futures=True)
