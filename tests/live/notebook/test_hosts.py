"""A cell of a real kernel whose workers are on three hosts: processes reached by `exec:`, or machines by SSH."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.live.engine.bench import needs
from tests.live.notebook.conftest import Notebook
from tests.live.notebook.hosts_story import story
from tests.support import machines
from tests.support.marks import everything
from tests.support.pool import Pool

pytest.importorskip("torch")
EVERYTHING = os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING")
HOROVOD = pytest.param("horovod", marks=needs("torch"))


@pytest.mark.parametrize("engine", ["torch", *([HOROVOD] if EVERYTHING else [])])
def test_a_cell_grows_over_processes_that_are_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    with Pool(tmp_path / "pool", slots=1) as pool:
        monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(pool.folder))
        notebook = Notebook(pool)
        try:
            story(pool, notebook, folder, engine, {"b": "exec:", "c": "exec:"})
            said = notebook.run("print([point.slots for point in job.size_history()])")
            assert said.printed == "[1, 2, 3, 2, 0]\n", said.error
        finally:
            notebook.close()


@everything
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(machines.why_not()), reason=machines.why_not())
@pytest.mark.parametrize("engine", ["torch", HOROVOD])
def test_a_cell_grows_over_machines_that_are_reached_by_ssh(engine: str) -> None:
    said = machines.run(Path(__file__).with_name("hosts_story.py"), engine, timeout_s=800)
    print(engine, json.loads(said.splitlines()[-1]))  # noqa: T201
