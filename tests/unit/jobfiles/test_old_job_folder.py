"""A job's folder as it was written before the package's folders were processes: it is read, its cell still runs.

`tests/data/job_before_the_moves` was written by real jobs of that time; the paths of that machine were taken out.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jupyter_elastic.jobfiles import displays, failure
from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder, attempts
from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.jobfiles.payload import read_payload, restore_namespace

DATA = Path(__file__).parents[2] / "data" / "job_before_the_moves"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    shutil.copytree(DATA, tmp_path / "jobs")
    return tmp_path / "jobs"


def test_its_attempts_have_ended_so_that_no_agent_takes_them_up_again(jobs: Path) -> None:
    ends = {folder.job_folder.name: folder.exit() for folder in attempts(jobs)}
    assert {name: end and (end.job, end.outcome, end.reason) for name, end in ends.items()} == {
        "completed": (1, "completed", ""),
        "failed": (2, "failed", "rank 0: ValueError: an old failure"),
    }
    folder = AttemptFolder.of(jobs / "completed", 1)
    launch, record = folder.order(), folder.record()
    assert launch is not None
    assert record is not None
    assert (launch.job, launch.spec.engine, launch.slots) == (1, "process", ("vm:0",))
    assert (record.job, record.attempt, len(record.workers)) == (1, 1, 1)


def test_its_cell_runs(jobs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    payload = read_payload(jobs / "completed")
    namespace = restore_namespace(payload)
    exec(compile(payload.source, payload.filename, "exec"), namespace)
    assert namespace["model"] == 42
    assert capfd.readouterr().out == "trained\n42\n"


def test_its_output_and_its_failure_are_shown(jobs: Path) -> None:
    ((record, _),) = displays.Reader(JobFolder(jobs / "completed"), "rank.0").more()
    assert record.data == {"text/plain": "42"}
    found = failure.read(JobFolder(jobs / "failed"))
    assert found is not None
    assert (found.rank, found.type, found.message) == (0, "ValueError", "an old failure")
