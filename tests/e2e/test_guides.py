"""Who follows the guides to a policy, an engine and a command, and nothing else, has one that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.guides import follow, python


@pytest.fixture(scope="module")
def plugins(pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All three, installed for every process of the pool."""
    folder = tmp_path_factory.mktemp("plugins")
    follow("write-a-policy", "smallest_first", folder)
    (folder / "test_0.py").rename(folder / "test_policy.py")
    follow("write-an-engine", "plain", folder)
    follow("write-a-command", "who", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield folder


def test_a_policy_an_engine_and_a_command_by_the_guides(plugins: Path) -> None:
    python(plugins, "pytest", "-q", "-p", "no:cacheprovider", "test_policy.py", "test_0.py")
    (plugins / "script.py").write_text("import os\nprint('hello from', rank, flush=True)\n")
    elastic = "jupyter_elastic.cli"
    assert "smallest_first (patience_s=60" in python(
        plugins, elastic, "policy", "smallest_first", "--opt", "patience_s=60"
    )
    assert "hello from 0" in python(plugins, elastic, "run", "script.py", "--engine", "plain", "--gpus", "2")
    assert "hello from 1" in python(plugins, elastic, "logs", "script.py", "--rank", "1")
    (plugins / "script.py").write_text("import time\ntime.sleep(1000)\n")
    python(plugins, elastic, "run", "script.py", "--engine", "plain", "--detach")
    assert '"waiting"' in python(plugins, elastic, "who", "--json")
    python(plugins, elastic, "cancel", "2")
