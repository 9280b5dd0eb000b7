"""What the page draws of metrics: which stand in one plot, where, with what happened on the way, and what is saved."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic import widgets

SOURCE = Path(widgets.__file__).parent / "frontend" / "src" / "view" / "job" / "metrics.ts"
LOSS = {
    "name": "train/loss",
    "points": [[0, 1.0], [10, 0.5], [20, 0.25]],
    "times": [2.0, 12.0, 22.0],
    "epochs": [0, 0.5, 1],
}
SCREEN = {
    "submitted_at": 100.0,
    "sizes": [
        {"at": 101.0, "slots": 1, "pause_s": 0.0},
        {"at": 111.0, "slots": 4, "pause_s": 0.5},
        {"at": 121.0, "slots": 4, "pause_s": 3.0},
        {"at": 130.0, "slots": 2, "pause_s": 0.0},
        {"at": 131.0, "slots": 0, "pause_s": 0.0},
    ],
}


def call(tmp_path: Path, expression: str, **given: Any) -> Any:
    node = shutil.which("node", path=Path(sys.executable).parent)
    if node is None:
        pytest.skip("no Node.js")
    (tmp_path / "metrics.ts").write_text(SOURCE.read_text())
    names = "".join(f"const {name} = {json.dumps(value)};" for name, value in given.items())
    (tmp_path / "run.mts").write_text(
        f"import * as metrics from './metrics.ts';{names}console.log(JSON.stringify({expression}));"
    )
    ran = subprocess.run([node, "run.mts"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    return json.loads(ran.stdout or pytest.fail(ran.stderr))


def test_training_and_validation_stand_in_one_plot_of_four_at_most(tmp_path: Path) -> None:
    names = ["train/loss", "val_loss", "accuracy", "loss", "test-loss", "eval loss", "training.accuracy", "late"]
    given = [{"name": name} for name in names]
    found = call(tmp_path, "metrics.groups(given).map(one => one.map(series => series.name))", given=given)
    assert found == [
        ["train/loss", "val_loss", "loss", "test-loss"],
        ["eval loss"],
        ["accuracy", "training.accuracy"],
        ["late"],
    ]


def test_resizes_and_deaths_are_marked_with_their_pauses_on_the_axis_that_is_chosen(tmp_path: Path) -> None:
    found = call(
        tmp_path,
        "Object.fromEntries(['step', 'epoch', 'time'].map(axis => [axis, metrics.marks(screen, [loss], axis)]))",
        screen=SCREEN,
        loss=LOSS,
    )
    assert found["time"] == [
        {"at": 11.0, "from": 10.5, "text": "1 → 4"},
        {"at": 21.0, "from": 18.0, "text": "✕"},
        {"at": 30.0, "from": None, "text": "4 → 2"},
    ]
    # At the first report after each; of what has come later there is none yet.
    assert [(mark["at"], mark["from"], mark["text"]) for mark in found["step"]] == [
        (10, None, "1 → 4"),
        (20, None, "✕"),
    ]
    assert [mark["at"] for mark in found["epoch"]] == [0.5, 1]


def test_smoothing_keeps_what_is_constant_and_weighs_what_came_before(tmp_path: Path) -> None:
    assert call(tmp_path, "metrics.smooth([3, 3, 3], 0.9)") == pytest.approx([3, 3, 3])
    assert call(tmp_path, "metrics.smooth([1, 0], 0)") == [1, 0]
    assert call(tmp_path, "metrics.smooth([1, 0, 0], 0.5)") == pytest.approx([1, 1 / 3, 1 / 7])


def test_the_points_are_saved_with_steps_times_and_epochs_whatever_a_metric_is_called(tmp_path: Path) -> None:
    plain = {"name": 'the "best", of all', "points": [[1, 1e300]]}
    assert call(tmp_path, "metrics.csv(given)", given=[LOSS, plain]).splitlines() == [
        "metric,step,seconds,epoch,value",
        '"train/loss",0,2,0,1',
        '"train/loss",10,12,0.5,0.5',
        '"train/loss",20,22,1,0.25',
        '"the ""best"", of all",1,,,1e+300',
    ]
