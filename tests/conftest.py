"""What every test shares: moderate hypothesis settings and a private pool folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# The suite draws the same examples every time: what fails in it fails again. `HYPOTHESIS_PROFILE=random` draws others.
settings.register_profile(
    "default",
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("random", settings.get_profile("default"), derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


TESTS = Path(__file__).parent
MARKS = {"browser": ("browser", "slow", "horovod"), "e2e": ("slow",), "live": ("slow",), "server": ("slow",)}
"""What every test of a folder is marked with."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, so that a new file can't forget it."""
    for item in items:
        for mark in MARKS.get(item.path.relative_to(TESTS).parts[0], ()):
            item.add_marker(mark)


@pytest.fixture
def pool_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pool of its own: no test sees another's daemon."""
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(tmp_path / "pool"))
    return tmp_path / "pool"
