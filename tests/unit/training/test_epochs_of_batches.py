"""`batches(..., epochs=...)` trains, logs and commits as the long form does, through a change of the group."""

from __future__ import annotations

import numpy as np
import pytest

from jupyter_elastic import training
from jupyter_elastic.training.state import State
from jupyter_elastic.types.errors import BadRequest
from tests.unit.training.test_repeated_epochs import Elastic

DATA = np.arange(10)


def short(state, saw):
    for xs in training.batches(DATA, batch_size=4, epochs=3):
        saw(state, xs)
        training.report(first=xs[0])


def long(state, saw):
    for state.epoch in state.epochs(3):  # noqa: B020
        for xs in training.batches(DATA, batch_size=4):
            saw(state, xs)
            training.report(first=xs[0])
        state.log(first=xs[0])
        state.commit()


def trained(memory, form, change_at=None):
    """The samples of each step, and the history; the group changes at the commit after that step."""
    memory.groups.group = lambda framework: Elastic()
    seen = []

    def saw(state, xs):
        seen.append((state.epoch, list(xs)))
        memory.change = len(seen) == change_at

    @training.run
    def train(state):
        memory.change = False
        form(state, saw)

    state = State()
    train(state)
    return seen, state.history


@pytest.mark.parametrize("change_at", [None, 3, 6])
def test_it_is_the_long_form(memory, change_at):
    seen, history = trained(memory, short, change_at)
    assert (seen, history) == trained(memory, long, change_at)
    assert [row["epoch"] for row in history] == [0, 1, 2]
    assert [row["first"] for row in history] == [seen[3 * epoch + 2][1][0] for epoch in range(3)]


def test_an_epoch_without_a_report_has_a_row_too(memory):
    state = State()

    @training.run
    def train(state):
        for _ in training.batches(DATA, batch_size=5, epochs=2):
            pass

    train(state)
    assert [(row["epoch"], row["step"]) for row in state.history] == [(0, 2), (1, 4)]


def test_where_it_can_not_be_it_is_refused(memory):
    with pytest.raises(BadRequest, match=r"training\.run"):
        next(training.batches(DATA, batch_size=4, epochs=2))

    @training.run
    def evaluated(state):
        next(training.batches(DATA, batch_size=4, epochs=2, train=False))

    @training.run
    def twice(state):
        for state.epoch in state.epochs(2):  # noqa: B020
            next(training.batches(DATA, batch_size=4, epochs=2))

    for function in (evaluated, twice):
        with pytest.raises(BadRequest, match="leave epochs out"):
            function(State())
