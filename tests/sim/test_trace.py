"""Pollux workloads: what is said of damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pollux import trace
from benchmarks.pollux.profiles import read_models
from jupyter_elastic.scheduler.sim.tables import TraceError
from tests.support import toy


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", 0, 1, 16)], "line 2, column batch_size: expected a batch of 32 to 128 samples"),
        ([("a", 0, 1, 32), ("a", 0, 1, 32)], "line 3, column name: expected a name that no earlier job has"),
        ([], "expected at least one job"),
    ],
)
def test_damaged_pollux_traces(tmp_path: Path, rows: list[tuple[str, int, int, int]], message: str) -> None:
    models = read_models(toy.write(tmp_path / "profiles"))
    with pytest.raises(TraceError) as problem:
        trace.read_jobs(toy.trace(tmp_path / "trace.csv", rows), models)
    assert message in str(problem.value)


def test_an_unknown_model_is_told_with_the_known_ones(tmp_path: Path) -> None:
    models = read_models(toy.write(tmp_path / "profiles"))
    path = toy.trace(tmp_path / "trace.csv", [("a", 0, 1, 32)], model="gpt")
    with pytest.raises(TraceError, match=r"line 2, column application: expected one of the profiled models \(toy\)"):
        trace.read_jobs(path, models)
