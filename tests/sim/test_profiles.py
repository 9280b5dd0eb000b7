"""Measured tables: exact where measured, linear between, the nearest outside; batches are cut as in the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pollux.profiles import Model, read_models
from jupyter_elastic.scheduler.sim.tables import TraceError
from tests.support import toy


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return read_models(toy.write(tmp_path))["toy"]


def test_limits_come_from_the_tables(model: Model) -> None:
    assert (model.initial_batch, model.max_batch, model.min_local, model.max_local) == (32, 128, 8, 32)
    assert model.max_epochs == 3
    assert model.end_of(0) == 0.0
    assert model.end_of(2) == 200.0
    assert model.max_replicas(128) == 16


def test_a_measured_placement_is_linear_in_the_local_batch(model: Model) -> None:
    assert model.times((2,), 16) == pytest.approx(toy.times(1, 2, 16))
    assert model.times((2,), 24) == pytest.approx(toy.times(1, 2, 24))
    assert model.times((2,), 64) == pytest.approx(toy.times(1, 2, 32))  # beyond what was measured: the nearest
    assert model.times((2,), 4) == pytest.approx(toy.times(1, 2, 8))


def test_a_placement_is_rotated_to_the_least_one(model: Model) -> None:
    assert model.times((3, 1), 16) == model.times((1, 3), 16)
    assert model.times((1, 1, 1), 16) == pytest.approx(toy.times(3, 3, 16))


def test_placements_never_measured_lie_between_the_others(model: Model) -> None:
    step, sync = model.times((2, 2, 2, 2), 16)
    assert toy.times(2, 4, 16)[0] < step < toy.times(4, 16, 16)[0]
    assert 0 < sync < step
    assert model.times((4,) * 16, 32) == pytest.approx(toy.times(16, 64, 32))
    assert model.times((4,) * 40, 32) == pytest.approx(toy.times(16, 64, 32))  # beyond: the nearest measured


@pytest.mark.parametrize(
    ("batch", "replicas", "expected"),
    [
        (32, 1, (32, 0)),
        (64, 1, (32, 1)),
        (33, 1, (17, 1)),  # more than the initial batch on one GPU: accumulates at least once
        (64, 2, (32, 0)),
        (128, 2, (32, 1)),
        (128, 3, (21, 1)),  # 22 would make more than the largest batch
        (128, 16, (8, 0)),
    ],
)
def test_a_batch_is_cut_into_equal_passes(model: Model, batch: int, replicas: int, expected: tuple[int, int]) -> None:
    assert model.split(batch, replicas) == expected


def test_optimus_always_accumulates_on_one_gpu(model: Model) -> None:
    assert model.split(32, 1, always_accumulate=True) == (16, 1)


def test_step_time_counts_each_pass_without_its_sync(model: Model) -> None:
    step, sync = toy.times(1, 2, 32)
    assert model.step_time((2,), 128) == pytest.approx(step + (step - sync))


def test_gain_is_that_of_the_noise_scale(model: Model) -> None:
    assert model.gain(32, 0) == pytest.approx(1.0)
    assert model.gain(64, 0) == pytest.approx(3.0 / 2.0)  # (2+1) / (2/2+1)
    assert model.gain(96, 1) == pytest.approx(3.0 / (2.0 / 3.0 + 1.0))
    assert model.later_work(64)[0] == pytest.approx(300 / 1.5)


def test_iterations_lie_between_the_nearest_batches(model: Model) -> None:
    assert model.iterations(64, 0) == pytest.approx(59)
    assert model.iterations(96, 0) == pytest.approx((59 + 39) / 2)


def test_the_best_batch_makes_most_progress(model: Model) -> None:
    best = model.best_batch((4,), 0)
    assert best > 32
    assert model.speed((4,), best, 0) >= model.speed((4,), 32, 0)


def test_a_batch_outside_of_the_measured_is_refused(model: Model) -> None:
    with pytest.raises(TraceError, match="measured with batches of 32 to 128 samples, not 256"):
        model.noise(256, 0)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n", "line 2: expected at least one measurement"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n10,8,1,0\n", "text matching regex '^[1-9]+$'"),
        (
            "placements.csv",
            "placement,local_bsz,step_time,sync_time\n1,8,-1,0\n",
            "column step_time: expected a number",
        ),
        ("validation-32.csv", "progress,iteration,grad_sqr,grad_var\n", "one row for each epoch"),
        ("validation-x.csv", "", "expected a name of the form validation-<batch size>.csv"),
    ],
)
def test_damaged_tables(tmp_path: Path, file: str, text: str, message: str) -> None:
    toy.write(tmp_path)
    (tmp_path / "toy" / file).write_text(text)
    with pytest.raises(TraceError) as problem:
        read_models(tmp_path)
    assert message in str(problem.value)


def test_folders_without_profiles(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no <model>/placements\.csv in it"):
        read_models(tmp_path)
    with pytest.raises(TraceError, match="no such folder"):
        read_models(tmp_path / "absent")
