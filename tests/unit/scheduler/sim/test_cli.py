"""`jupyter elastic sim run`: rows, pictures, and bad input that ends with exit code 2 and says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_elastic.scheduler.sim import schedule_metrics, sim_command
from jupyter_elastic.scheduler.sim.plots import draw
from jupyter_elastic.types.errors import BadRequest

HEADER = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"


@pytest.fixture
def tiresias(tmp_path: Path) -> list[str]:
    trace = tmp_path / "trace.csv"
    trace.write_text(HEADER + "".join(f"{i},{1 + i % 3},{30 * i},133,vgg11,{200 + i},23\n" for i in range(6)))
    return ["--trace", str(trace), "--nodes", "2"]


def test_json_has_one_object_a_policy(tiresias: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert sim_command.main([*tiresias, "--policy", "las,default,elastic_fifo", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == ["las", "default", "elastic_fifo"]
    for row in rows:
        assert tuple(row) == schedule_metrics.KEYS
        assert row["avg_jct_s"] > 0


def test_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "out.png"
    command = ["--synthetic", "12", "--nodes", "2", "--policy", "fifo,elastic_fifo", "--plot", str(picture)]
    assert sim_command.main(command) == 0
    out = capsys.readouterr().out
    assert "elastic_fifo" in out
    assert "makespan_s" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_options_reach_their_policy(tiresias: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = [*tiresias, "--policy", "fifo,elastic_fifo", "--opt", "fifo.backfill=easy", "--json"]
    assert sim_command.main(command) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--policy", "nonesuch"], "there is no policy 'nonesuch'"),
        (["--policy", ","], "--policy wants at least one name"),
        (["--policy", "fifo", "--nodes", "0"], "a pool of 0 nodes with 4 GPUs each can't run anything"),
        (["--policy", "fifo", "--gpus-per-node", "-1"], "a pool of 2 nodes with -1 GPUs each"),
        (["--policy", "fifo", "--opt", "nonesuch=1"], "nonesuch"),
        (["--policy", "fifo", "--opt", "las.x=1"], "expected NAME=VALUE or POLICY.NAME=VALUE"),
        (["--policy", "fifo", "--nodes", "many"], "invalid int value"),
        (["--policy", "fifo", "--synthetic", "3"], "give either --trace FILE or --synthetic JOBS"),
        ([], "the following arguments are required: --policy"),
    ],
)
def test_bad_arguments_end_with_2(
    tiresias: list[str], more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sim_command.main([*tiresias, *more]) == 2
    assert message in capsys.readouterr().err


def test_bad_files_end_with_2(tiresias: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Path(tiresias[1])
    whole = trace.read_text()
    trace.write_text(whole[: whole.rindex(",")])  # truncated
    assert sim_command.main([*tiresias, "--policy", "las"]) == 2
    assert f"{trace}: line 7, column 6: expected 7 columns" in capsys.readouterr().err
    assert sim_command.main(["--trace", str(tmp_path / "absent"), "--policy", "las"]) == 2
    assert "check the path" in capsys.readouterr().err
    trace.write_text("Transformer\tcmd\t-n\t1\t1000\t100.5\t4\n")
    assert sim_command.main(["--trace", str(trace), "--policy", "las"]) == 2
    assert "needs --profiles" in capsys.readouterr().err
    assert sim_command.main(["--synthetic", "3", "--policy", "fifo", "--plot", str(tmp_path / "no" / "out.png")]) == 2
    assert "can't be written" in capsys.readouterr().err


def test_a_job_wider_than_the_pool_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(HEADER + "7,8,30,133,vgg11,266,23\n")
    assert sim_command.main(["--trace", str(trace), "--policy", "fifo", "--nodes", "1"]) == 2
    assert "wants at least 8 slots and the pool has 4" in capsys.readouterr().err
    assert sim_command.main(["--trace", str(trace), "--policy", "fifo", "--nodes", "2", "--json"]) == 0


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim_command.main(["--help"]) == 0
    assert "--gpus-per-node" in capsys.readouterr().out


def test_nothing_to_draw() -> None:
    with pytest.raises(BadRequest, match="no run to draw"):
        draw([])
