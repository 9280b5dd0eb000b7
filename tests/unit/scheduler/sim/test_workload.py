"""Speeds between measured points, and a generator that makes the same workload from the same seed."""

from __future__ import annotations

import pytest

from jupyter_elastic.scheduler.sim.workload import Measured, Power, SpeedCurve, synthetic
from jupyter_elastic.types.errors import BadRequest


def test_measured_speeds() -> None:
    speed = Measured.of({8: 50.0, 2: 10.0, 4: 30.0})
    assert [speed(n) for n in (0, 1, 2, 3, 4, 6, 8, 16)] == [0, 5, 10, 20, 30, 40, 50, 50]
    with pytest.raises(BadRequest, match="at least one measured point"):
        Measured.of({})


def test_models_of_speed() -> None:
    assert SpeedCurve(1.0, 0.0, 0.0)(4) == 4.0
    assert SpeedCurve(1.0, 0.0, 0.0)(0) == 0.0
    assert Power(2.0, 0.5)(9) == pytest.approx(6.0)


def test_the_generator_is_seeded_and_sane() -> None:
    one, same, other = synthetic(40, seed=3), synthetic(40, seed=3), synthetic(40, seed=4)
    assert one == same
    assert one != other
    assert [task.submitted for task in one] == sorted(task.submitted for task in one)
    for task in synthetic(60, slots=8, seed=1, deadlines=0.5):
        assert 1 <= task.min_slots <= task.max_slots <= 8
        assert task.alone(task.max_slots) <= task.alone(task.min_slots) * 1.0001
        if task.deadline is not None:
            assert task.deadline > task.submitted + task.alone(task.max_slots)


def test_load_sets_the_pace() -> None:
    slow, fast = (synthetic(200, load=load, seed=1) for load in (0.5, 2.0))
    assert slow[-1].submitted == pytest.approx(4 * fast[-1].submitted, rel=1e-3)


@pytest.mark.parametrize("bad", [{"jobs": 0}, {"slots": 0}, {"load": 0.0}, {"mean_s": -1.0}, {"users": 0}])
def test_senseless_workloads_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(BadRequest):
        synthetic(**{"jobs": 5, **bad})  # type: ignore[arg-type]
