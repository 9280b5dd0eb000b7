from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest

from jupyter_elastic import training
from jupyter_elastic.training import link
from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import SingleProcess
from jupyter_elastic.training.run import uses_batches, warm_up_step  # uses_batches
from jupyter_elastic.training.state import State
from jupyter_elastic.types.errors import BadRequest, EngineError


def test_outside_of_a_job_it_runs_here_alone():
    @training.run
    def train(state, factor):
        """Docstring."""
        return [training.rank(), training.size(), training.total(2.5), factor * sum(state.epochs(4))]

    assert train(State(), 10) == [0, 1, 2.5, 60]
    assert train.__doc__ == "Docstring."
    assert context.state is None


def test_a_first_argument_that_is_no_state_is_refused():
    with pytest.raises(BadRequest, match=r"training.State as its first argument, not dict"):
        training.run(lambda state: None)({})


def test_several_workers_without_a_group_are_refused(memory, monkeypatch):
    memory.groups = None
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(EngineError, match=r"forms no process group.*--engine horovod"):
        training.run(lambda state: None)(State())
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert training.run(lambda state: (training.rank(), training.size()))(State()) == (0, 1)


def test_a_job_that_starts_again_goes_on_from_its_commit(memory):
    memory.groups = None

    @training.run
    def train(state, until):
        for state.epoch in state.epochs(until):  # noqa: B020
            state.history = [*state.history, state.epoch]
            for _ in training.batches([1, 2], 2):
                pass
            state.commit()
        return state.history

    assert train(State(history=[]), 2) == [0, 1]
    memory.begin_cell()
    memory.outcomes.clear()
    assert train(State(history=[]), 4) == [0, 1, 2, 3]


def test_the_cells_own_error_comes_out_as_it_is():
    with pytest.raises(ZeroDivisionError):
        training.run(lambda state: 1 // 0)(State())
    assert context.state is None


def test_a_warm_up_step_is_one_step_and_leaves_no_trace(memory, capsys):
    steps = []

    def train(state):
        print("said in private")  # noqa: T201
        for state.epoch in state.epochs(3):  # noqa: B020
            for batch in training.batches(list(range(10)), 4):
                steps.append((training.rank(), training.size(), len(batch), context.warming_up))
                state.best = random.random() + np.random.random()  # noqa: NPY002
                training.report(loss=1.0)
            state.commit()

    state = State(best=None)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    warm_up_step(train, SingleProcess(), state, (), {})
    drawn = random.random(), np.random.random()  # noqa: NPY002
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    assert drawn == (random.random(), np.random.random())  # noqa: NPY002
    assert steps == [(1, 2, 2, True)]
    assert (state.best, state.epoch, state.step) == (None, 0, 0)
    assert memory.kept is None
    assert memory.reports == []
    assert capsys.readouterr().out == ""


def test_a_warm_up_step_ends_at_a_commit_too():
    def train(state):
        for _ in training.batches([1, 2], 2):
            pass
        state.commit()
        pytest.fail("went on after the first step")

    warm_up_step(train, SingleProcess(), State(), (), {})


def failing(file, failure):
    names = {"failure": failure}
    exec(compile("def train(state):\n    state.best = 5\n    raise failure", file, "exec"), names)
    return names["train"]


@pytest.mark.parametrize("failure", [ValueError("early"), EngineError("no closure"), SystemExit(0), MemoryError()])
def test_what_fails_in_a_warm_up_step_keeps_the_worker_out_of_the_group(failure):
    state = State(best=1)
    with pytest.raises(type(failure)):
        warm_up_step(failing("<In[1]>", failure), SingleProcess(), state, (), {})
    assert state.best == 1


@pytest.mark.parametrize(
    "file", ["torch/distributed/distributed_c10d.py", "torch/utils/data/distributed.py", "horovod/a.py"]
)
def test_a_collective_that_fails_without_other_members_is_left_to_the_group(capsys, file):
    state = State(best=1)
    warm_up_step(failing(f"/v/site-packages/{file}", ValueError("early")), SingleProcess(), state, (), {})
    assert state.best == 1
    assert "ended early: ValueError: early" in capsys.readouterr().err


def test_only_functions_that_use_batches_are_rehearsed():
    def plain(state):
        while True:
            state.step()

    def nested(state):
        def inner():
            return training.batches([1], 1)

        return inner

    assert not uses_batches(plain.__code__)
    assert uses_batches(nested.__code__)


def test_shard_and_total_alone():
    x, _ = training.shard((np.arange(5), np.arange(5) * 2))
    assert x.tolist() == [0, 1, 2, 3, 4]
    assert training.total([1, 2]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("value", "how", "answer"), [(True, "any", True), (0, "all", False), (2, "mean", 2.0)])
def test_alone_everybody_agrees_with_itself(value, how, answer):
    assert training.agree(value, how) == answer


def test_agreement_in_one_group(memory, monkeypatch):
    class Three(SingleProcess):
        def size(self):
            return 3

        def total(self, values):
            return np.add(values, 2.0)  # two others said 1

    monkeypatch.setattr(context, "group", Three())
    assert [training.agree(False), training.agree(False, "all"), training.agree(True, "all")] == [True, False, True]
    assert training.agree(4, "mean") == 2.0


def test_an_unknown_way_to_agree_is_refused():
    with pytest.raises(BadRequest, match=r"'any', 'all' and 'mean', not 'most'"):
        training.agree(True, "most")


def test_commit_needs_a_training():
    with pytest.raises(BadRequest, match=r"under @training.run"):
        training.commit()


def test_importing_training_imports_no_framework():
    code = (
        "import sys; from jupyter_elastic import training; training.State(a=1); list(training.batches([1, 2], 2));"
        "print([m for m in ('torch', 'tensorflow', 'keras', 'horovod') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_session_is_none_outside_of_a_job():
    assert link.current is None


def test_a_small_last_batch_is_left_out_and_holds_others_in_each_epoch():
    taken = []

    @training.run
    def train(state):
        for state.epoch in state.epochs(3):  # noqa: B020
            taken.append([i for batch in training.batches(list(range(10)), 4, drop_last=True) for i in batch.tolist()])

    state = State()
    train(state)
    assert [len(samples) for samples in taken] == [8, 8, 8]
    assert len({frozenset(samples) for samples in taken}) > 1
    assert (state.step, state.samples) == (6, 24)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"drop_last": True}, r"leaves out all of the data: a batch is 8 of 5"), ({"least": 0}, "least must be a whole")],
)
def test_batches_that_can_not_be_are_refused(given, said):
    with pytest.raises(BadRequest, match=said):
        training.batches(list(range(5)), 8, **given)


BATCH_NORM = "Expected more than 1 value per channel when training"


@pytest.mark.parametrize(
    ("samples", "micro_batch", "error", "noted"),
    [
        (4, 1, BATCH_NORM, True),
        (4, 1, "another", True),
        (1, None, BATCH_NORM, True),
        (1, None, "another", False),
        (4, 2, BATCH_NORM, False),
    ],
)
def test_an_error_where_a_share_has_one_sample_says_so(samples, micro_batch, error, noted):
    @training.run
    def train(_state):
        for _ in training.batches(list(range(samples)), 8, micro_batch=micro_batch):
            raise ValueError(error)

    with pytest.raises(ValueError, match=error) as caught:
        train(State())
    notes = getattr(caught.value, "__notes__", [])
    assert ("least=2" in "".join(notes)) is noted
