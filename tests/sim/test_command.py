"""`python -m benchmarks.pollux`: published and own policies side by side, and bad input that ends with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.pollux import __main__ as command
from jupyter_elastic.scheduler.sim import schedule_metrics
from tests.support import toy


@pytest.fixture
def workload(tmp_path: Path) -> list[str]:
    profiles = toy.write(tmp_path / "profiles")
    rows = [(f"j{i}", 30 * i, 1 + i % 3, 64) for i in range(6)]
    return ["--trace", str(toy.trace(tmp_path / "trace.csv", rows)), "--profiles", str(profiles), "--nodes", "2"]


def test_json_has_one_object_a_policy(workload: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*workload, "--policy", "las,optimus,default,las@ours", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == ["las", "optimus", "default", "las@ours"]
    for row in rows:
        assert tuple(row) == schedule_metrics.KEYS
        assert row["avg_jct_s"] > 0
    assert rows[0] != rows[3]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--policy", "nonesuch"], "there is no policy 'nonesuch'"),
        (["--policy", "nonesuch@ours"], "there is no policy 'nonesuch'"),
        (["--policy", "fifo", "--nodes", "0"], "a pool of 0 nodes with 4 GPUs each can't run anything"),
        (["--policy", "las", "--profiles", "/nonesuch"], "--profiles wants the folder"),
    ],
)
def test_bad_arguments_end_with_2(
    workload: list[str], more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*workload, *more]) == 2
    said = capsys.readouterr().err
    assert said.startswith("python -m benchmarks.pollux: ")
    assert message in said


def test_bad_files_end_with_2(workload: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    trace = Path(workload[1])
    whole = trace.read_text()
    trace.write_text(whole[: whole.rindex(",")])  # truncated
    assert command.main([*workload, "--policy", "las"]) == 2
    assert f"{trace}: line 7, column 4: expected 5 columns" in capsys.readouterr().err
    trace.write_text(whole.replace("toy", "gpt"))
    assert command.main([*workload, "--policy", "las"]) == 2
    assert "column application: expected one of the profiled models (toy), found 'gpt'" in capsys.readouterr().err
