from __future__ import annotations

import numpy as np
import pytest

from jupyter_elastic import training
from jupyter_elastic.training import link
from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import MembershipChanged, PeerLost
from jupyter_elastic.training.report import report, reporter
from jupyter_elastic.training.state import State, commits_of
from jupyter_elastic.types.errors import BadRequest, EngineError


def test_values_are_attributes_and_epoch_is_always_there():
    state = State(best=0.5)
    state.history = [1]
    assert (state.best, state.history, state.epoch, state.step) == (0.5, [1], 0, 0)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'"):
        _ = state.nothing
    with pytest.raises(BadRequest, match=r"`step` is a word of training.State itself"):
        state.step = 4


def test_restore_undoes_changes_deep_inside_too():
    state = State(history=[1, 2], best=1.0)
    state.commit()
    state.history.append(3)
    state.best, state.extra = 9.0, "later"
    state.restore()
    assert (state.history, state.best) == ([1, 2], 1.0)
    assert not hasattr(state, "extra")


def test_restore_without_a_commit_says_so():
    with pytest.raises(BadRequest, match=r"call state\.commit\(\) first"):
        State().restore()


def test_what_cannot_be_committed_is_named():
    state = State(fine=1, handle=(i for i in range(3)))
    with pytest.raises(BadRequest, match=r"state\.handle can't be committed"):
        state.commit()


def test_a_commit_for_which_there_is_no_room_says_what_to_do(memory, group, monkeypatch):
    state = State(best=1)
    state.commit()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    state.best = 2
    monkeypatch.setattr(memory, "save", full)
    with pytest.raises(EngineError, match=r"no room for a commit of 0\.0 MB, .*No space left.* Free some space"):
        state.commit()
    state.restore()
    assert state.best == 1


def test_a_commit_outlives_the_process(memory, group):
    context.state = first = State(history=[1])
    first.history.append(2)
    first.commit(durable=True)
    assert memory.durable == [True]
    context.state = again = State(history=[])
    commits_of(again).sync()
    assert again.history == [1, 2]
    again.history.append(3)
    commits_of(again).sync()  # only a state that was never in a group takes up the old commit
    assert again.history == [1, 2, 3]


def test_a_commit_after_a_member_was_lost_is_not_kept_though_no_collective_has_said_so(memory, group, monkeypatch):
    state = State(n=1)
    state.commit()

    def broken() -> None:
        raise PeerLost("a member is gone")

    monkeypatch.setattr(group, "require_whole", broken)
    state.n = 2
    with pytest.raises(PeerLost):
        state.commit()
    with pytest.raises(PeerLost):
        context.require_group()  # also where the cell has caught it
    state.restore()
    assert state.n == 1


def test_workers_that_form_no_ring_keep_no_common_commit(memory, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    State(history=[1]).commit()
    assert memory.kept is None


def test_epochs_go_on_where_they_were():
    state = State()
    state.epoch = 3
    assert list(state.epochs(6)) == [3, 4, 5]
    assert state.epoch == 6
    assert list(state.epochs(6)) == []


def train(state, epochs, *, samples=10, batch_size=4, at=None, seen=None):
    """A loop as people write it; `at(state)` is called in each step after it was trained."""
    for state.epoch in state.epochs(epochs):  # noqa: B020
        for batch in training.batches(list(range(samples)), batch_size):
            seen.append((state.epoch, tuple(batch.tolist())))
            if at is not None:
                at(state)
        state.ended = [*state.ended, state.epoch]
        state.commit()


def whole_run(epochs):
    """What an undisturbed training sees, alone and without a session."""
    seen, group, context.group = [], context.group, None
    current, link.current = link.current, None
    context.state = state = State(ended=[])
    train(state, epochs, seen=seen)
    context.group, link.current = group, current
    assert state.step == 3 * epochs
    assert state.samples == 10 * epochs
    return seen


def test_every_epoch_sees_everything_once():
    seen = whole_run(3)
    for epoch in range(3):
        assert sorted(sum((batch for e, batch in seen if e == epoch), ())) == list(range(10))
    assert seen[:3] != [(0, batch) for _, batch in seen[3:6]]


@pytest.mark.parametrize("when", range(1, 10))
def test_a_planned_change_in_any_step_changes_nothing(memory, group, when):
    """With no optimizer that tells, the state asks by itself; the function begins anew, nothing is lost."""
    expected, seen = whole_run(3), []
    context.state = state = State(ended=[])

    def wish(state):
        if len(seen) == when:
            memory.change = True

    rounds = 0
    while True:
        rounds += 1
        try:
            train(state, 3, at=wish, seen=seen)
        except MembershipChanged:
            memory.change = False
            commits_of(state).reset()
            commits_of(state).sync()
        else:
            break
    assert seen == expected
    assert rounds == 2
    assert state.ended == [0, 1, 2]
    assert (state.step, state.samples) == (9, 30)


@pytest.mark.parametrize("when", range(1, 10))
@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_rollback_repeats_what_came_after_the_commit_and_nothing_else(group, when, every):
    expected, seen, committed = whole_run(3), [], [0]
    context.state = state = State(ended=[])
    commits_of(state).sync()

    class MemberLost(Exception):
        pass

    broken = []

    def at(state):
        if state.step % every == 0:
            state.commit()
            committed[0] = len(seen)
        if len(seen) == when and not broken:
            broken.append(True)
            raise MemberLost

    def attempt():
        before = len(state.ended)
        try:
            train(state, 3, at=at, seen=seen)
        except MemberLost:
            # train() commits at the end of an epoch as well
            last = max(committed[0], 3 * before, 3 * len(state.ended))
            state.restore()
            commits_of(state).reset()
            commits_of(state).sync()
            return last
        return None

    last = attempt()
    assert last is not None
    del seen[last:]
    assert attempt() is None
    assert seen == expected
    assert state.ended == [0, 1, 2]
    assert (state.step, state.samples) == (9, 30)


def test_a_commit_at_an_epochs_end_means_that_it_is_done(memory, group):
    seen = []
    context.state = state = State(ended=[])
    train(state, 1, seen=seen)
    context.state = again = State(ended=[])
    commits_of(again).sync()
    assert again.epoch == 1
    train(again, 1, seen=seen)
    assert again.ended == [0]


def test_a_second_pass_in_an_epoch_is_found_again(memory, group):
    """Training and validation in one epoch: after a change in the second, the first is not repeated."""
    seen = []

    def loop(state):
        for state.epoch in state.epochs(2):  # noqa: B020
            seen.extend(("train", state.epoch, len(batch)) for batch in training.batches(list(range(6)), 2))
            for batch in training.batches(list(range(6)), 3):
                seen.append(("check", state.epoch, len(batch)))
                memory.change = len(seen) == 9  # the first of the second epoch's two
                state.commit()

    context.state = state = State()
    with pytest.raises(MembershipChanged):
        loop(state)
    assert len(seen) == 9
    memory.change = False
    commits_of(state).reset()
    loop(state)
    for epoch in (0, 1):
        assert [kind for kind, e, _ in seen if e == epoch] == ["train"] * 3 + ["check"] * 2


def test_a_loop_within_a_loop_has_no_place_of_its_own():
    context.state = state = State()
    inner = []
    for _ in state.epochs(1):
        for _ in training.batches(list(range(4)), 2):
            inner += [batch.tolist() for batch in training.batches(list(range(3)), 3, shuffle=False)]
    assert inner == [[0, 1, 2]] * 2
    assert state.samples == 4


def test_leaving_a_loop_early_ends_nothing_of_the_next_epoch():
    context.state = state = State()
    sizes = []
    for _ in state.epochs(2):
        for batch in training.batches(list(range(10)), 4):
            sizes.append(len(batch))
            break
    assert sizes == [4, 4]
    for _ in training.batches(list(range(10)), 4):
        pass


def test_without_epochs_each_loop_is_whole():
    context.state = State()
    for _ in range(2):
        assert len(list(training.batches(list(range(10)), 4))) == 3


def test_bad_batch_sizes_are_refused_where_they_are_given():
    with pytest.raises(BadRequest, match=r"batch_size must be a whole number"):
        training.batches([1], 0)
    with pytest.raises(BadRequest, match=r"micro_batch must be"):
        training.batches([1], 1, micro_batch=0.5)


def test_a_pass_for_evaluation_has_no_place_and_counts_for_nothing(memory, group):
    seen = []

    def loop(state):
        for state.epoch in state.epochs(2):  # noqa: B020
            for _ in training.batches(list(range(10)), 4, seed=1):
                assert context.micro_batch is not None
                report(loss=1.0)
            for batch in training.batches(list(range(6)), 4, train=False):
                assert context.micro_batch is None
                seen.extend(batch)
            state.commit()

    state = State()
    context.state = state
    reporter.forget()
    loop(state)
    assert seen == [*range(6), *range(6)]  # in their order
    assert (state.step, state.samples, sum(context.passes)) == (6, 20, 10)
    assert reporter._progress().total_samples == 20.0


def test_a_pass_in_which_no_optimizer_steps_counts_for_nothing(group):
    context.reducers = 1
    context.state = state = State()
    for state.epoch in state.epochs(2):  # noqa: B020
        for number, _ in enumerate(training.batches(list(range(10)), 2)):
            context.trained = (
                number % 2 == 1
            )  # gradients of two batches are gathered by hand, and those of the last lost
        assert (state.step, state.samples) == (2 * (state.epoch + 1), 8 * (state.epoch + 1))
        for _ in training.batches(list(range(50)), 2):
            assert state.step == 2 * (state.epoch + 1)
        assert context.passes == [10, 0]
    assert (state.step, state.samples) == (4, 16)


def test_what_is_logged_survives_as_the_rest_of_the_state_does(memory, group):
    context.state = state = State()
    assert state.history == []
    for state.epoch in state.epochs(3):  # noqa: B020
        for _ in training.batches(list(range(4)), 2):
            pass
        state.log(loss=np.float32(0.5), text="so")
        if state.epoch < 2:
            state.commit()
    state.restore()
    expected = [{"epoch": n, "step": 2 * n + 2, "loss": 0.5, "text": "so"} for n in range(2)]
    assert state.history == expected
    assert type(state.history[0]["loss"]) is float
    context.state = again = State()
    commits_of(again).sync()
    assert again.history == expected
