"""The pool that the tests of a module share: the owner's, and with everything also of somebody without any right."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.guests import guest, join, tcp_options
from tests.support.pool import Pool

USERS = ("owner", "somebody") if "JUPYTER_ELASTIC_TEST_EVERYTHING" in os.environ else ("owner",)
OWNERS_ONLY = ("restart", "thousand", "leaves_open")
"""In the names of tests that end the daemon, or in which it makes no difference who the user is."""


@pytest.fixture(scope="module", params=USERS)
def lasting_pool(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Pool]:
    """A pool of two CPU slots with daemon and agent."""
    folder = tmp_path_factory.mktemp("lasting")
    if request.param == "owner":
        with Pool(folder / "pool") as pool:
            yield pool
        return
    if not request.module.__name__.endswith("test_session_cells"):
        pytest.skip("of the modules one runs as somebody too")
    user, shares = guest(folder, "somebody"), folder / "shares.toml"
    shares.write_text("[default]\nmax_sessions = 100\nparked_mb = 100000\n")
    with Pool(folder / "pool", options=("--shares", str(shares), *tcp_options(folder))) as pool:
        try:
            yield join(user, pool)
        finally:
            user.stop()


@pytest.fixture
def shared_pool(lasting_pool: Pool, request: pytest.FixtureRequest) -> Iterator[Pool]:
    """The module's pool, whole again and without jobs after each test, whatever the test did to it."""
    if lasting_pool.folder.name == "somebody":
        name = request.node.originalname
        if "engine" in request.fixturenames or any(word in name for word in OWNERS_ONLY):
            pytest.skip("as the owner only")
    yield lasting_pool
    lasting_pool.mend()
