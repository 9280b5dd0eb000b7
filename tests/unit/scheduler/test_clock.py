"""The daemon's time takes no step when the machine's clock does."""

from __future__ import annotations

import pytest

from jupyter_elastic.scheduler.clock import SLEW, Clock


class Machine:
    def __init__(self) -> None:
        self.passed, self.wrong = 0.0, 0.0
        self.clock = Clock(lambda: 1e9 + self.passed + self.wrong, lambda: self.passed)

    def wait(self, seconds: float) -> float:
        self.passed += seconds
        return self.clock.now() - 1e9


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_an_hour_is_followed_by_a_tenth_of_what_passes(step: float) -> None:
    machine = Machine()
    assert machine.wait(100.0) == pytest.approx(100.0)
    machine.wrong = step
    assert machine.wait(0.0) == pytest.approx(100.0)
    for second in range(1, 1000):
        assert machine.wait(1.0) == pytest.approx(100.0 + second * (1 + SLEW * step / 3600.0))
    assert machine.wait(40_000.0) == pytest.approx(machine.passed + step), "in the end it is what people read"


def test_it_never_goes_back_and_small_errors_are_followed_at_once() -> None:
    machine = Machine()
    machine.wrong = 0.05
    assert machine.wait(1.0) == pytest.approx(1.05)
    before = 0.0
    for step in (-7.0, 3.0, -1e6, 1e6, 0.0):
        machine.wrong = step
        now = machine.wait(0.5)
        assert now > before
        before = now


def test_it_begins_where_the_journal_ends_and_goes_on_from_there() -> None:
    machine = Machine()
    machine.clock.not_before(1e9 + 3600.0)
    assert machine.wait(10.0) == pytest.approx(3609.0)
    machine.clock.not_before(1e9)
    assert machine.wait(10.0) == pytest.approx(3618.0)
