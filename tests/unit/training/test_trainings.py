"""Several trainings in one cell: each has its own commits, and one that has ended is not trained again."""

from __future__ import annotations

import errno

import pytest

from jupyter_elastic import training
from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.training.report import report, reporter
from jupyter_elastic.training.state import State


class Pruned(Exception):
    """What a trial raises that is given up."""


class Two(Exception):
    """Its arguments are not those of `Exception`: a pickle of it can't be read."""

    def __init__(self, trial, why):
        super().__init__(f"{trial}: {why}")


class Unreadable:
    def __reduce__(self):
        return unreadable, ()


def unreadable():
    raise OSError("only written")


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def alone(memory):
    memory.groups = None
    return memory


def counting(state, epochs, stop=None, log=None):
    for state.epoch in state.epochs(epochs):  # noqa: B020
        for _ in training.batches([1, 2, 3, 4], 2):
            state.total += 1
            if log is not None:
                log.append((state.name, state.step))
        state.commit()
        if stop is not None and state.epoch == stop:
            raise Killed
    return state.total


count = training.run(counting)


def test_each_training_of_a_cell_starts_with_its_own_state(alone):
    found = []
    for epochs in (2, 3, 4):
        state = State(total=0, name=epochs)
        count(state, epochs)
        found.append((state.name, state.total, state.step))
    assert found == [(2, 4, 4), (3, 6, 6), (4, 8, 8)]


def test_a_job_that_begins_anew_in_the_second_training_passes_over_the_first(alone, capsys):
    log = []

    def cell(stop):
        first, second = State(total=0, name="a"), State(total=100, name="b")
        one = count(first, 2, log=log)
        two = count(second, 3, stop, log)
        return one, first.total, first.step, two, second.step

    with pytest.raises(Killed):
        cell(1)
    alone.begin_cell()
    assert cell(None) == (4, 4, 4, 106, 6)
    assert log == [("a", step) for step in (1, 2, 3, 4)] + [("b", step) for step in (1, 2, 3, 4, 5, 6)]
    assert capsys.readouterr().err.count("training 1 of this cell was finished before") == 1


def test_an_exception_that_the_cell_has_caught_is_raised_again(alone):
    trained = []

    @training.run
    def trial(state):
        trained.append(state.name)
        state.total += 1
        if state.name == "a":
            raise Pruned("a", 3)
        if len(trained) == 2:
            raise Killed
        return state.total

    def cell():
        first = State(total=0, name="a")
        with pytest.raises(Pruned) as raised:
            trial(first)
        return raised.value.args, first.total, trial(State(total=5, name="b"))

    with pytest.raises(Killed):
        cell()
    alone.begin_cell()
    assert cell() == (("a", 3), 1, 6)
    assert trained == ["a", "b", "b"]


def test_an_exception_that_has_ended_the_cell_is_not_kept(alone):
    fails = [True, False]

    @training.run
    def train(state):
        if fails.pop(0):
            raise OSError(errno.EIO, "once")
        return "well"

    with pytest.raises(OSError, match="once"):
        train(State())
    alone.begin_cell()
    assert train(State()) == "well"


def test_what_cannot_be_kept_is_trained_again_and_that_is_said(alone, capsys):
    trained = []

    @training.run
    def train(state):
        trained.append(state.name)
        return (i for i in range(3))

    for _ in range(2):
        alone.begin_cell()
        train(State(name="a"))
        train(State(name="b"))
    assert trained == ["a", "b", "a", "b"]
    assert "training 1 of this cell has given can't be kept (TypeError: " in capsys.readouterr().err


def test_what_cannot_be_read_is_trained_again(alone, capsys):
    trained = []

    @training.run
    def train(state):
        trained.append(state.name)
        return Unreadable()

    for _ in range(2):
        alone.begin_cell()
        train(State(name="a"))
        train(State(name="b"))
    assert trained == ["a", "b", "a", "b"]
    assert "training 1 of this cell has given can't be read (only written)" in capsys.readouterr().err


@pytest.mark.parametrize("problem", [Two(1, "x"), ValueError("a", 2)])
def test_a_retry_after_an_exception_is_a_training_of_its_own(alone, problem):
    trained = []

    @training.run
    def train(state, problem):
        trained.append(state.lr)
        state.total += 1
        if problem is not None:
            raise problem
        return state.total

    def cell():
        try:
            return train(State(lr=1.0, total=0), problem)
        except (Two, ValueError) as raised:
            first = (type(raised), raised.args, str(raised))
        return first, train(State(lr=0.1, total=10), None), train(State(lr=0.1, total=20), None)

    expected = (type(problem), problem.args, str(problem)), 11, 21
    assert cell() == expected
    alone.begin_cell()
    alone.kept = None
    assert cell() == expected
    assert trained == [1.0, 0.1, 0.1, 0.1], "only the last one, which no other has followed, is trained again"


def test_what_a_training_returns_of_its_state_is_that_of_the_state(alone):
    torch = pytest.importorskip("torch")

    @training.run
    def train(state):
        with torch.no_grad():
            state.net.weight.fill_(7)
        return state, {"best": state.net, "loss": 0.5}

    def cell():
        net = torch.nn.Linear(1, 1)
        state = State(net=net)
        return net, state, train(state)

    cell()
    trained_weight = 7.0
    alone.begin_cell()
    net, state, (same_state, found) = cell()
    assert same_state is state
    assert found["best"] is net
    assert found["loss"] == 0.5
    assert net.weight.item() == trained_weight


def test_models_of_other_shapes_follow_each_other(alone):
    torch = pytest.importorskip("torch")

    @training.run
    def train(state):
        for _ in training.batches(torch.ones(4, 2), 2):
            pass
        state.commit()
        return [tuple(p.shape) for p in state.net.parameters()]

    wide = train(State(net=torch.nn.Linear(2, 9)))
    assert (wide, train(State(net=torch.nn.Linear(2, 3)))) == ([(9, 2), (9,)], [(3, 2), (3,)])


def test_progress_says_which_training_it_is_of(alone):
    @training.run
    def train(state):
        for _ in training.batches([1, 2], 2):
            report(loss=1.0)

    train(State())
    reporter.sent_at = 0.0
    train(State())
    assert [p.training for p in alone.reports if p.step is not None] == [1, 2]


def test_kept_trainings_have_a_limit_and_go_with_the_job(tmp_path, monkeypatch):
    (tmp_path / "job").mkdir()
    commits = Commits(tmp_path / "job")
    commits.write_training(1, b"one", b"!")
    assert commits.training(1) is None, "the cell may end with it"
    commits.keep_training(1)
    commits.release(keep=True)
    assert bytes(commits.training(1)) == b"one!"
    commits.write_training(2, b"two")
    monkeypatch.setattr("jupyter_elastic.jobfiles.commits.MAX_KEPT", 10)
    with pytest.raises(OSError, match="with the ones before"):
        commits.write_training(3, b"much")
    commits.release(keep=False)
    assert list((tmp_path / "job" / "commit").iterdir()) == []
