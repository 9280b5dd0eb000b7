"""Each public format, read from a few lines of it, and what is said of damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_elastic.scheduler.sim import formats
from jupyter_elastic.scheduler.sim.tables import TraceError

SHOCKWAVE = "Transformer (batch size 16)\tcmd\ttranslation\t-step\t1\t82787\t2\taccordion\t1\t-1.000000\t8749\t24\n"
GAVEL = "ResNet-18 (batch size 16)\tcmd\t-n\t1\t1000\t100.5\t4\nResNet-18 (batch size 16)\tcmd\t-n\t1\t500\t130.5\t1\n"
PHYSICAL = "ResNet-18 (batch size 16)\tcmd\timage\t-n\t1\t1000\t4\t1\t2.0\t10\n"
ELASTICFLOW = (
    "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\na,1000,45,bert,1900,64,2,9\n"
)
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n7,8,30,133,vgg11,266,23\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def inner(text: str) -> Path:
        path = tmp_path / "trace"
        path.write_text(text)
        return path

    return inner


@pytest.fixture
def gavel_speeds(tmp_path: Path) -> Path:
    path = tmp_path / "simulation_throughputs.json"
    table = {"v100": {"('ResNet-18 (batch size 16)', 4)": {"null": 10.0, "('x', 1)": [1, 2]},
                      "('ResNet-18 (batch size 16)', 1)": {"null": 5.0}}}  # fmt: skip
    path.write_text(json.dumps(table))
    return path


@pytest.fixture
def elasticflow_speeds(tmp_path: Path) -> Path:
    folder = tmp_path / "throughputs"
    folder.mkdir()
    (folder / "bert.csv").write_text("global_batch_size,1,2,4,8\n64,1.0,1.8,3.0,2.5\n128,0.5,1.0,nan,0\n")
    return folder


Write = Callable[[str], Path]


def test_gavel(write: Write, gavel_speeds: Path) -> None:
    first, second = formats.gavel(write(GAVEL), gavel_speeds)
    assert (first.submitted, second.submitted) == (0.0, 30.0)
    assert (first.min_slots, first.max_slots) == (4, 4)
    assert first.alone(4) == pytest.approx(100.0)
    assert second.alone(1) == pytest.approx(100.0)
    wide = GAVEL.replace("\t4\n", "\t8\n")  # only fewer GPUs were measured
    assert formats.gavel(write(wide), gavel_speeds)[0].alone(8) == pytest.approx(100.0 / 2**0.9)
    (physical,) = formats.gavel(write(PHYSICAL), gavel_speeds.parent)
    assert physical.deadline == pytest.approx(200.0)


def test_shockwave(write: Write) -> None:
    (task,) = formats.shockwave(write(SHOCKWAVE))
    assert task.max_slots == 2
    assert task.alone(2) == pytest.approx(8749)


def test_elasticflow(write: Write, elasticflow_speeds: Path) -> None:
    (task,) = formats.elasticflow(write(ELASTICFLOW), elasticflow_speeds)
    assert task.sizes == (1, 2, 4)  # 8 is slower than 4
    assert task.deadline == 900
    assert task.alone(4) == pytest.approx(15)


def test_tiresias_and_made_elastic(write: Write) -> None:
    (task,) = formats.tiresias(write(TIRESIAS))
    assert task.alone(8) == pytest.approx(266)
    (elastic,) = formats.elastic([task], 2, 12)
    assert (elastic.min_slots, elastic.max_slots) == (1, 12)
    assert elastic.alone(8) == pytest.approx(266)
    assert elastic.alone(1) == pytest.approx(266 * 8**0.9)


def test_formats_are_recognised(write: Write, tmp_path: Path) -> None:
    for text, kind in [(GAVEL, "gavel"), (PHYSICAL, "gavel"), (SHOCKWAVE, "shockwave"), (TIRESIAS, "tiresias"),
                       (ELASTICFLOW, "elasticflow"), ("SQLite format 3\0", "journal")]:  # fmt: skip
        assert formats.detect(write(text)) == kind
    with pytest.raises(TraceError, match="line 1, column 1: expected the header of one of the formats"):
        formats.detect(write("hello\n"))
    with pytest.raises(TraceError, match=r"python -m benchmarks\.pollux"):
        formats.detect(write("name,time,application,num_replicas,batch_size\n"))
    with pytest.raises(TraceError, match="check the path"):
        formats.detect(tmp_path / "absent")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GAVEL + "ResNet-18 (batch size 16)\tcmd\t-n\n", "line 3, column 3: expected 7 tab-separated columns"),
        (GAVEL.replace("1000", "many"), "line 1, column total_steps: expected a number, found 'many'"),
        (
            GAVEL.replace("ResNet", "ResNot"),
            "line 1, column job_type: expected a job type with a measured speed on v100",
        ),
        ("", "line 1: expected at least one job"),
    ],
)
def test_damaged_gavel_traces(write: Write, gavel_speeds: Path, text: str, message: str) -> None:
    path = write(text)
    with pytest.raises(TraceError) as problem:
        formats.gavel(path, gavel_speeds)
    assert str(problem.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1, column 2: expected JSON"),
        ("[]", "no GPU type 'v100' in it"),
        ('{"v100": {"x": {}}}', "v100, 'x': expected"),
    ],
)
def test_damaged_gavel_speeds(write: Write, text: str, message: str) -> None:
    with pytest.raises(TraceError) as problem:
        formats.gavel_speeds(write(text), "v100")
    assert message in str(problem.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ELASTICFLOW.replace("bert", "gpt9"), "line 2, column model_name: expected a model with a"),
        (ELASTICFLOW.replace(",64,", ",65,"), "line 2, column batch_size: expected one of bert's measured 64, 128"),
        (ELASTICFLOW + "b,1\n", "line 3, column 2: expected 8 columns"),
    ],
)
def test_damaged_elasticflow_traces(write: Write, elasticflow_speeds: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError) as problem:
        formats.elasticflow(write(text), elasticflow_speeds)
    assert message in str(problem.value)


def test_profiles_must_be_given(write: Write) -> None:
    with pytest.raises(TraceError, match="needs --profiles"):
        formats.gavel(write(GAVEL), None)
    with pytest.raises(TraceError, match="needs --profiles"):
        formats.elasticflow(write(ELASTICFLOW), None)
