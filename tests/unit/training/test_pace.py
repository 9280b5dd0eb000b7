"""Shares of a batch by measured speed."""

from __future__ import annotations

import numpy as np
import pytest

from jupyter_elastic import training
from jupyter_elastic.balance import SOLVERS
from jupyter_elastic.training import data
from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import SingleProcess
from jupyter_elastic.training.pace import EVERY, PROBES, Pace
from jupyter_elastic.training.run import workload
from jupyter_elastic.training.state import State
from jupyter_elastic.types import BALANCE, BALANCES
from jupyter_elastic.types.errors import BadRequest


class Clock:
    """Time that goes on when it is told to."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def told(paces):
    """All tell each other their speeds; whether each takes them for new ones."""
    figures = sum(one.figures(rank, len(paces)) for rank, one in enumerate(paces))
    return [one.learn(figures) for one in paces]


def turn(one, clock, samples, own_s, waits_s=0.0):
    one.begin()
    clock.now += own_s
    with one.waiting():
        clock.now += waits_s
    one.end(samples)


def test_shares_follow_the_time_that_is_a_workers_own(clock):
    paces = [Pace(clock), Pace(clock)]
    assert [one.sizes(90) for one in paces] == [None, None]
    for _ in range(PROBES[0]):
        turn(paces[0], clock, 45, 0.1, waits_s=0.1)
        turn(paces[1], clock, 45, 0.2)
    assert all(one.due for one in paces)
    assert told(paces) == [True, True]
    assert paces[0].sizes(90) == paces[1].sizes(90) == [60, 30]
    assert paces[0].busy == pytest.approx((0.1, 0.2))
    assert paces[0].waits == pytest.approx((0.1, 0.0))
    assert paces[1].overhead_s == 0.0
    assert paces[1].waited_shares == pytest.approx([0.5, 0.0])


def test_a_turn_in_which_another_process_had_the_processor_counts_for_nothing(clock):
    paces = [Pace(clock), Pace(clock)]
    for number in range(PROBES[1]):
        turn(paces[0], clock, 45, 2.0 if number == 4 else 0.1)
        turn(paces[1], clock, 45, 0.2)
    told(paces)
    assert paces[0].sizes(90) == [60, 30]


def test_the_first_turn_of_a_group_is_not_counted(clock):
    paces = [Pace(clock), Pace(clock)]
    turn(paces[0], clock, 45, 5.0)
    turn(paces[1], clock, 45, 0.1)
    for one in paces * 2:
        turn(one, clock, 45, 0.1)
    told(paces)
    assert paces[0].sizes(90) == [45, 45]


def test_after_the_probes_only_a_drift_makes_another_plan(clock):
    paces = [Pace(clock), Pace(clock)]

    def until_due(first_s):
        for _ in range(1000):
            turn(paces[0], clock, 45, first_s)
            turn(paces[1], clock, 45, 0.1)
            if paces[0].due:
                return told(paces)
        return None

    assert [until_due(0.1)[0] for _ in PROBES] == [True] * len(PROBES)
    assert until_due(0.125) == [False, False]
    assert paces[0].turns % EVERY == 0
    assert paces[0].sizes(90) == [45, 45]
    assert until_due(0.2) == [True, True]
    assert paces[0].sizes(90) == [30, 60]


def test_a_collective_beside_the_computation_ends_with_its_last_bucket(clock):
    one = Pace(clock)
    turn(one, clock, 10, 0.1)
    one.begin()
    one.mark()
    clock.now += 0.3
    one.mark()
    clock.now += 0.5
    one.waited_since_mark()
    one.end(10)
    one.learn(one.figures(0, 1))
    assert one.busy == pytest.approx((0.3,))


@pytest.mark.parametrize(("own_s", "another"), [(0.12, False), (0.08, False), (0.15, True), (0.05, True)])
def test_speeds_that_are_remembered_count_until_they_have_drifted(clock, own_s, another):
    one = Pace(clock)
    assert one.recall(None) is False
    assert one.recall((100.0,)) is True
    for _ in range(PROBES[0]):
        turn(one, clock, 10, own_s)
    assert one.due
    assert one.learn(one.figures(0, 1)) is another
    assert one.speeds == (pytest.approx(10 / own_s if another else 100.0),)
    one.new_group()
    assert not one.asked


def test_a_workload_is_known_by_what_its_function_does():
    def short(state):
        return [x * 2 for x in range(10)]

    def longer(state):
        return [x * 2 for x in range(999)]

    def other(state):
        return [x + 2 for x in range(10)]

    first, second, third = (workload(one.__code__).hexdigest() for one in (short, longer, other))
    assert first == second != third


def test_one_that_has_measured_nothing_leaves_the_plan_as_it_is():
    one = Pace()
    assert one.learn(one.figures(0, 1)) is False
    assert one.sizes(8) is None


def test_unequal_shares_are_the_whole_batch_once_and_weigh_as_one():
    batch, sizes = np.arange(100, 130), [20, 9, 0, 1]
    for micro in (None, 6):
        pieces = [list(data.micro_batches(batch, 0, rank, 4, micro, sizes)) for rank in range(4)]
        trained = [i for of in pieces for piece in of for i in piece.indices.tolist() if piece.weight]
        assert sorted(trained) == batch.tolist()
        assert sum(piece.weight for of in pieces for piece in of) == pytest.approx(1.0)
        assert len({len(of) for of in pieces}) == 1
        assert all(len(piece.indices) for of in pieces for piece in of)
        assert all(len(piece.indices) <= (micro or 20) for of in pieces for piece in of)


def test_the_options_word_and_the_solvers_are_the_same():
    assert set(BALANCES) == set(SOLVERS)


def test_a_solver_that_there_is_not_is_refused(monkeypatch):
    with pytest.raises(BadRequest, match=r"balance='best': there are auto, none"):
        training.batches([1, 2], 2, balance="best")
    monkeypatch.setenv(BALANCE, "fast")
    with pytest.raises(BadRequest, match="'fast'"):
        training.batches([1, 2], 2)
    assert list(training.batches([1, 2], 2, balance="none"))


def test_logical_workers_and_shares_by_speed_exclude_each_other():
    pytest.importorskip("torch")
    with (
        context.training(State(logical_workers=2), SingleProcess()),
        pytest.raises(BadRequest, match=r"leave `balance`.*or logical_workers"),
    ):
        training.batches([1, 2], 2, balance="auto")


class Two(SingleProcess):
    """A group in which somebody else is, who does the same."""

    def size(self):
        return 2


def test_without_a_prepared_optimizer_shares_by_speed_are_refused():
    with (
        context.training(State(), Two()),
        pytest.raises(BadRequest, match=r"put the optimizer into training.State, or leave `balance` out"),
    ):
        next(training.batches([1, 2], 2, balance="auto"))
