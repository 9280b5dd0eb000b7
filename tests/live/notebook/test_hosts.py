"""A cell of a real kernel whose workers are on three hosts: processes reached by `exec:`, or machines by SSH."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from jupyter_elastic.hostfiles.hosts_file import host_name
from jupyter_elastic.types import JobStarted
from tests.live.agent.test_other_hosts import elastic
from tests.live.engine.bench import needs
from tests.live.engine.ps_cells import COUNTED
from tests.live.engine.test_multi_worker import NAMED
from tests.live.notebook.conftest import Notebook
from tests.live.notebook.hosts_scenario import STEP_S, story
from tests.support import machines
from tests.support.marks import everything
from tests.support.pool import Pool

pytest.importorskip("torch")
EVERYTHING = os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING")
HOROVOD = pytest.param("horovod", marks=needs("torch"))
HERE = f"{NAMED}\nserver = 'localhost'"
TENSORFLOW = [pytest.param(kind, marks=needs("tensorflow")) for kind in ("tensorflow", "fit")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["torch", *([HOROVOD, *TENSORFLOW] if EVERYTHING else [])])
def test_a_cell_grows_over_processes_that_are_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    with Pool(tmp_path / "pool", slots=1) as pool:
        monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(pool.folder))
        notebook = Notebook(pool)
        try:
            story(pool, notebook, folder, kind, {"b": "exec:", "c": "exec:"})
            said = notebook.run("print([point.slots for point in job.size_history()])")
            assert said.printed == "[1, 2, 3, 2, 0]\n", said.error
        finally:
            notebook.close()


def test_a_cell_whose_workers_meet_on_their_machine_keeps_to_one_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At an address of the one machine that it names; a cluster of parameter servers stays on this host."""
    with Pool(tmp_path / "pool", slots=2) as pool:
        monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(pool.folder))
        notebook = Notebook(pool)
        try:
            notebook.load()
            elastic("host", "add", "b", "exec:", "--slots", "3")
            refused = notebook.run(f"%%distribute --engine process --gpus 4\n{HERE}")
            assert (
                "find each other on one host only, and none has more than 3 slots; ask for at most 3" in refused.error
            )
            done = notebook.run(f"%%distribute --engine process --gpus 3 --out found\n{HERE}")
            assert "completed in" in done.views[-1], (done.error, done.views)
            assert on(pool, 1) == {"b"}
            if EVERYTHING:
                parameter_servers(pool, notebook, tmp_path)
        finally:
            notebook.close()


def parameter_servers(pool: Pool, notebook: Notebook, folder: Path) -> None:
    """A cluster is on the driver's host, or refused before it is queued."""
    notebook.run(f"FOLDER, ROWS, EPOCHS = {os.fspath(folder)!r}, 8, 2")
    how = "%%distribute --engine tensorflow_ps --servers 1 --out epochs -o job"
    refused = notebook.run(f"{how} --gpus 2\n{COUNTED}")
    assert f"the workers of this cell are all on {host_name()}, which has 2 slots" in refused.error
    request = notebook.start(f"{how} --gpus 1\n{COUNTED}")
    pool.until(lambda: pool.events_of(2), "the cell is submitted")
    pool.until(lambda: pool.info(2).phase == "completed", "the cluster has trained", STEP_S)
    done = notebook.finish(request)
    assert "completed in" in done.views[-1], (done.error, done.views)
    assert on(pool, 2) == {host_name()}


def on(pool: Pool, job: int) -> set[str]:
    """The hosts on which the job has begun."""
    [began] = [event for event in pool.events_of(job) if isinstance(event, JobStarted)]
    return {slot.rpartition(":")[0] for slot in began.slots}


@everything
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(machines.why_not()), reason=machines.why_not())
@pytest.mark.parametrize("kind", ["torch", HOROVOD])
def test_a_cell_grows_over_machines_that_are_reached_by_ssh(kind: str) -> None:
    said = machines.run(Path(__file__).with_name("hosts_scenario.py"), kind, timeout_s=800)
    print(kind, json.loads(said.splitlines()[-1]))  # noqa: T201
