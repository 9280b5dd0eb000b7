"""The guides to a policy, an engine, a command and a host provider, followed by the letter, give ones that work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.guides import follow, python


@pytest.fixture(scope="module")
def plugins(pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All four, installed for every process of the pool."""
    folder = tmp_path_factory.mktemp("plugins")
    follow("write-a-policy", "smallest_first", folder)
    (folder / "test_0.py").rename(folder / "test_policy.py")
    follow("write-an-engine", "plain", folder)
    follow("write-a-command", "who", folder)
    (folder / "test_0.py").rename(folder / "test_engine.py")
    follow("write-a-host-provider", "docker_hosts", folder)
    (docker := folder / "docker").write_text(
        '#!/bin/sh\ntest "$1 $2 $3" = "exec --interactive trainer" && shift 3 && exec "$@"\n'
        'echo "container $3 is not running" >&2; exit 1\n'
    )  # what `docker exec` does with its words
    docker.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        yield folder


def test_a_policy_an_engine_and_a_command_by_the_guides(plugins: Path) -> None:
    python(plugins, "pytest", "-q", "-p", "no:cacheprovider", "test_policy.py", "test_engine.py", "test_0.py")
    (plugins / "script.py").write_text(
        "import os\nprint('hello from', rank, 'in trial', os.environ['TRIAL'], flush=True)\n"
    )
    elastic = "jupyter_elastic.cli"
    assert "smallest_first (patience_s=60" in python(
        plugins, elastic, "policy", "smallest_first", "--opt", "patience_s=60"
    )
    assert "hello from 0 in trial" in python(plugins, elastic, "run", "script.py", "--engine", "plain", "--gpus", "2")
    assert "hello from 1 in trial" in python(plugins, elastic, "logs", "script.py", "--rank", "1")
    (plugins / "script.py").write_text("import time\ntime.sleep(1000)\n")
    python(plugins, elastic, "run", "script.py", "--engine", "plain", "--detach")
    assert '"waiting"' in python(plugins, elastic, "who", "--json")
    assert '"waiting"' in python(plugins, elastic, "job", "who", "--json")
    assert "how many slots each user holds" in python(plugins, elastic, "job")
    python(plugins, elastic, "cancel", "2")


def test_a_host_provider_by_the_guide(plugins: Path) -> None:
    elastic, near = "jupyter_elastic.cli", ("--slots", "1", "--network", "127.0.0.0/8")
    assert "trainer: 1 slots" in python(plugins, elastic, "host", "add", "docker", "trainer", *near)
    assert "docker://trainer" in python(plugins, elastic, "host", "list")
    (plugins / "script.py").write_text("print('on', rank, flush=True)\n")
    python(plugins, elastic, "run", "script.py", "--engine", "process", "--gpus", "3")
    assert "on 2" in python(plugins, elastic, "logs", "script.py", "--rank", "2")  # the pool's own slots are two
    with pytest.raises(AssertionError, match=r"container gone is not running.*\(docker start gone\)"):
        python(plugins, elastic, "host", "add", "docker", "gone")
    python(plugins, elastic, "host", "remove", "trainer")
