"""What every test shares: moderate hypothesis settings and a private pool folder."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from msgspec.structs import replace

from jupyter_elastic.protocol import wire
from tests.support.somebody import pytest_generate_tests, who

__all__ = ["pytest_generate_tests", "who"]

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


NO_FOLDER = "/tmp/none"
"""The folder of jobs that a test submits and never runs. A pool wants one for each, so each is given its own."""
_encode = wire.encode


def _with_a_folder_of_its_own(message: wire.Request | wire.AnyMessage) -> bytes:
    ask = getattr(message, "ask", None)
    if isinstance(ask, wire.SubmitJob) and ask.spec.folder == NO_FOLDER:
        spec = replace(ask.spec, folder=f"{NO_FOLDER}/{ask.key[:50]}")
        message = replace(message, ask=replace(ask, spec=spec))
    return _encode(message)


wire.encode = _with_a_folder_of_its_own
TESTS = Path(__file__).parent
MARKS = {
    "browser": ("browser", "slow"),
    "e2e": ("slow",),
    "hub": ("slow",),
    "live": ("slow",),
    "live/training": ("horovod",),
    "server": ("slow",),
}
"""What every test below a folder is marked with."""


@functools.cache
def _built(framework: str) -> bool:
    """Whether Horovod is built for a framework here."""
    package = importlib.util.find_spec("horovod")
    return package is not None and any((Path(package.origin or "").parent / framework).glob("*.so"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, so that a new file can't forget it; skip those whose framework is not here."""
    for item in items:
        folders = [folder.as_posix() for folder in item.path.relative_to(TESTS).parents]
        for mark in (mark for folder in folders for mark in MARKS.get(folder, ())):
            item.add_marker(mark)
        for mark in item.iter_markers("horovod"):
            missing = [framework for framework in mark.args if not _built(framework)]
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"Horovod isn't built for {' and '.join(missing)} here"))


@pytest.fixture
def pool_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pool of its own: no test sees another's daemon."""
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(tmp_path / "pool"))
    return tmp_path / "pool"
