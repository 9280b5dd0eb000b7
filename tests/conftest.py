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


@pytest.fixture
def pool_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pool of its own: no test sees another's daemon."""
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(tmp_path / "pool"))
    return tmp_path / "pool"
