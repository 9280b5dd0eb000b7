"""The handle, as far as it goes without a pool."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.client.job import Job, slot_range
from jupyter_elastic.types import JobInfo, JobSpec
from jupyter_elastic.types.errors import BadRequest, ElasticError, JobCancelled, JobFailed, NotAllowed, NotFound


def job(folder: Path, **what: Any) -> Job:
    """A handle whose daemon said this last: an ended job is not asked for again."""
    spec = JobSpec(name="<b>n</b>", folder=str(folder), python="/p", min_slots=1, max_slots=2)
    handle = Job(None, 7)  # type: ignore[arg-type]
    handle._known = JobInfo(
        **{"job": 7, "owner": "ann", "spec": spec, "phase": "completed", "submitted_at": 1.0, **what}
    )
    return handle


def leave(folder: Path, rank: int, data: bytes) -> None:
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results" / f"rank.{rank}.pickle").write_bytes(data)


def test_results_by_rank(tmp_path: Path) -> None:
    handle = job(tmp_path)
    assert handle.results == {}
    assert handle.result() is None
    leave(tmp_path, 10, pickle.dumps({"a": 10}))
    leave(tmp_path, 2, pickle.dumps({"a": 2}))
    (tmp_path / "results" / "rank.0.pickle.tmp").write_bytes(b"half")
    assert list(handle.results) == [2, 10]
    assert handle.result() == 2
    assert handle.result(rank=10) == 10
    with pytest.raises(NotFound, match=r"rank 3 .* left no result; there are \[2, 10\]"):
        handle.result(rank=3)
    leave(tmp_path, 2, pickle.dumps({"a": 2, "b": 3}))
    assert handle.result() == {"a": 2, "b": 3}
    leave(tmp_path, 2, b"not a pickle")
    with pytest.raises(ElasticError, match="can't be read here"):
        handle.result()


def test_logs(tmp_path: Path) -> None:
    handle = job(tmp_path)
    assert handle.logs() == ""
    (tmp_path / "rank.1").mkdir()
    (tmp_path / "rank.1" / "stdout").write_bytes(b"1%\r2%\n\xff")
    assert handle.logs(1) == "1%\r2%\n\ufffd"
    assert handle.logs(1, "stderr") == ""
    assert handle.ranks == [1]
    with pytest.raises(NotFound, match=r"no rank 0; there are \[1\]"):
        handle.logs(0)
    with pytest.raises(BadRequest, match="stdout"):
        handle.logs(1, "both")


def test_a_failed_job_opens_with_the_traceback(tmp_path: Path) -> None:
    handle = job(tmp_path, phase="failed", reason="rank 1 ended")
    with pytest.raises(JobFailed, match="failed: rank 1 ended"):
        handle.result()
    (tmp_path / "error.json").write_text(
        json.dumps({"rank": 1, "type": "ValueError", "message": "x", "traceback": "Traceback ...\nValueError: x\n"})
    )
    with pytest.raises(JobFailed) as caught:
        handle.result()
    assert str(caught.value).startswith("Traceback ...\nValueError: x\n\nThat was rank 1 of job 7")
    (tmp_path / "error.json").write_text("{half")
    assert handle.error is None
    with pytest.raises(JobCancelled, match="slots are free again"):
        job(tmp_path, phase="cancelled").result()


def test_its_looks_stay_true(tmp_path: Path) -> None:
    assert repr(job(tmp_path)) == "<Job 7 '<b>n</b>': completed>"
    assert not hasattr(job(tmp_path), "_repr_html_")  # the text is what every tool shows, and escapes


@pytest.mark.parametrize(("given", "meant"), [(2, (2, 2)), ("1:4", (1, 4)), ((2, 3), (2, 3)), (" 2 : 3 ", (2, 3))])
def test_ranges(given: Any, meant: tuple[int, int]) -> None:
    assert slot_range(given) == meant


@pytest.mark.parametrize("given", [0, -1, "", "a", "3:2", "1:", ":2", (1, 2, 3), "0:3"])
def test_no_ranges(given: Any) -> None:
    with pytest.raises(BadRequest, match="--gpus"):
        slot_range(given)


def test_of_somebody_elses_job_no_file_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is not told: the working folder must not be taken for it."""
    monkeypatch.chdir(tmp_path)
    leave(tmp_path, 0, pickle.dumps({"a": 1}))
    handle = job(tmp_path, spec=JobSpec(name="n", folder="", python="", engine="-", min_slots=1, max_slots=2))
    for look in (lambda: handle.results, handle.result, handle.logs, lambda: handle.ranks, lambda: handle.error):
        with pytest.raises(NotAllowed, match="job 7 is ann's"):
            look()
    handle = job(tmp_path, spec=handle.known.spec, phase="failed")
    with pytest.raises(JobFailed, match="ann's alone"):
        handle.check()
