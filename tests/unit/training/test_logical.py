from __future__ import annotations

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from jupyter_elastic import training
from jupyter_elastic.training.context import context
from jupyter_elastic.training.data import logical_batches
from jupyter_elastic.training.frameworks.logical import TreeSum
from jupyter_elastic.training.state import State, commits_of
from jupyter_elastic.types.errors import BadRequest, EngineError


def summed(workers, size):
    """The sum of the same random vectors on so many processes, whose all-reduce adds up in an order of its own."""
    vectors = np.random.default_rng(1).normal(size=(workers, 50)).astype("float32") * 10.0 ** np.arange(-3, 2).repeat(
        10
    )
    vectors = vectors.astype("float32")
    barrier, given, found = threading.Barrier(size), {}, {}

    def process(rank):
        tree = TreeSum(workers, rank, size)

        def allreduce(tensors):
            given[rank] = tensors[0]
            barrier.wait(20)
            result = np.zeros(50, "float32")
            for other in np.roll(range(size), 1):
                result += given[int(other)]
            barrier.wait(20)
            return [result]

        for piece in logical_batches(np.arange(64), 0, rank, size, workers):
            tree.add(piece.worker, [vectors[piece.worker].copy()])
        found[rank] = tree.total(allreduce, np.zeros_like)[0].tobytes()

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(set(found.values())) == 1
    assert len(found) == size
    assert np.frombuffer(found[0], "float32") == pytest.approx(vectors.sum(0, dtype="float64"), rel=1e-4, abs=1e-3)
    return found[0]


@pytest.mark.parametrize("workers", [*range(1, 10), 16])
def test_any_number_of_processes_adds_up_in_the_same_order(workers):
    assert len({summed(workers, size) for size in range(1, workers + 1)}) == 1


def test_logical_workers_share_each_batch_whatever_the_size():
    batch = np.arange(100, 130)
    whole = [piece.indices.tolist() for piece in logical_batches(batch, 0, 0, 1, 8)]
    assert sorted(number for share in whole for number in share) == batch.tolist()
    for size in range(1, 9):
        pieces = [list(logical_batches(batch, 0, rank, size, 8)) for rank in range(size)]
        assert [piece.indices.tolist() for of in pieces for piece in of] == whole
        assert [piece.worker for of in pieces for piece in of] == list(range(8))
        assert [[piece.last for piece in of] for of in pieces] == [[False] * (len(of) - 1) + [True] for of in pieces]
        assert sum(piece.weight for of in pieces for piece in of) == pytest.approx(1.0)


X, Y = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(64, 1)


def trained(  # noqa: PLR0913
    model=None,
    *,
    workers=4,
    batch_size=16,
    optimizer_of=None,
    at=None,
    times=1,
    micro_batch=None,
    data=(X, Y),
    epochs=1,
):
    """Weights after an epoch; `at(state)` is called in each turn of the loop."""
    torch.manual_seed(0)
    model = model or torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = (optimizer_of or (lambda parameters: torch.optim.Adam(parameters, lr=0.01)))(model.parameters())
    state = State(model=model, optimizer=optimizer, logical_workers=workers)

    @training.run
    def train(state):
        for state.epoch in state.epochs(epochs):  # noqa: B020
            for x, y in training.batches(data, batch_size, micro_batch=micro_batch):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                if at is not None:
                    at(state)
                for _ in range(times):
                    optimizer.step()

    train(state)
    return [value.tolist() for value in model.state_dict().values()]


def test_alone_it_trains_as_its_logical_workers_would():
    def linear():
        torch.manual_seed(0)
        return torch.nn.Linear(4, 1)

    weights, plain = trained(linear()), trained(linear(), workers=None)
    assert weights[0] == [pytest.approx(plain[0][0], rel=1e-3)]
    assert weights == trained(linear())


def test_random_numbers_depend_on_the_place_alone():
    import random

    drawn = []
    for noise in (1, 2):
        random.seed(noise)
        np.random.seed(noise)  # noqa: NPY002
        torch.manual_seed(noise)
        drawn.append([])

        def draw(state):
            drawn[-1].append((random.random(), np.random.rand(), torch.rand(1).item()))  # noqa: NPY002

        trained(at=draw, epochs=2)
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == len(drawn[0]) == 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "whole number of at least 1, not 0"),
        ({"workers": 2.5}, "whole number of at least 1, not 2.5"),
        ({"workers": True}, "whole number of at least 1, not True"),
        ({"batch_size": 30}, r"batch_size=30 can't be shared equally by 4 logical workers.*such as 32"),
        ({"batch_size": 1}, r"such as 4"),
        ({"micro_batch": 2}, "leave it out"),
        ({"model": torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.BatchNorm1d(1))},
         r"BatchNorm1d's 1.running_mean changes in the forward pass.*GroupNorm"),
        ({"at": lambda state: training.total(1.0)}, "training.total is called for a piece of a batch"),
        ({"at": lambda state: training.agree(1)}, "training.agree is called for a piece of a batch"),
    ],
)  # fmt: skip
def test_refused_with_the_way_out(options, message):
    with pytest.raises(BadRequest, match=message):
        trained(**options)


def test_an_optimizer_steps_once_a_piece():
    with pytest.raises(EngineError, match=r"logical worker 0 steps in the place of 1.*exactly once"):
        trained(times=2)


def test_a_closure_is_refused():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters())

    @training.run
    def train(state):
        for _ in training.batches(X, 16):
            optimizer.step(lambda: model(X).sum())

    with pytest.raises(EngineError, match=r"optimizer.step\(closure\).*without micro_batch and logical workers"):
        train(State(model=model, optimizer=optimizer, logical_workers=2))


def test_frozen_batch_norm_trains():
    model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.BatchNorm1d(1))
    model[1].eval()
    assert trained(model)


def test_without_an_optimizer_in_the_state_it_is_refused():
    with pytest.raises(BadRequest, match="is for PyTorch"):
        training.run(lambda state: None)(State(logical_workers=2))
    with pytest.raises(BadRequest, match="needs the optimizer in"):
        training.run(lambda state: None)(State(model=torch.nn.Linear(1, 1), logical_workers=2))


def test_an_optimizer_that_averages_by_itself_is_refused():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.synchronize = lambda: None
    with pytest.raises(BadRequest, match="averages by itself"):
        training.run(lambda state: None)(State(model=model, optimizer=optimizer, logical_workers=2))


def test_more_processes_than_logical_workers_are_refused(group, monkeypatch):
    model = torch.nn.Linear(1, 1)
    state = State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), logical_workers=2)
    monkeypatch.setattr(group, "size", lambda: 3)
    with pytest.raises(BadRequest, match=r"3 processes can't be 2 logical workers: ask for `--gpus 1:2`"):
        commits_of(state).require_logical()


def test_a_changed_number_on_resume_is_refused():
    def state(workers):
        return State(model=torch.nn.Linear(1, 1), logical_workers=workers)

    blob = commits_of(state(2)).encoded()
    commits_of(state(2)).decode(blob)
    for other in (4, None):
        with pytest.raises(BadRequest, match=f"made with logical_workers=2, and the training.State here has {other}"):
            commits_of(state(other)).decode(blob)


def test_the_number_of_threads_goes_with_the_commit():
    state = State(model=torch.nn.Linear(1, 1), logical_workers=2)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        blob = commits_of(state).encoded()
        torch.set_num_threads(1)
        commits_of(state).decode(blob)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_step_outside_of_batches_is_refused():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @training.run
    def train(state):
        model(X).sum().backward()
        optimizer.step()

    with pytest.raises(EngineError, match=r"within `for ... in training.batches"):
        train(State(model=model, optimizer=optimizer, logical_workers=2))


def test_a_commit_within_a_batch_waits_for_its_end():
    kept = []

    def at(state):
        before = commits_of(state).saved
        state.commit()
        kept.append(commits_of(state).saved is not before)
        assert kept[-1] == context.last_micro_batch

    trained(at=at)
    assert kept.count(True) == 4
    assert len(kept) == 16


def test_a_job_that_may_outgrow_them_is_refused_when_the_state_is_made(monkeypatch):
    monkeypatch.setenv("JUPYTER_ELASTIC_MAX_WORKERS", "4")
    assert State(logical_workers=4).logical_workers == 4
    assert State().logical_workers is None
    with pytest.raises(BadRequest, match=r"by the 4 processes that this job may have: submit it with `--gpus 1:3`"):
        State(logical_workers=3)


def test_the_number_comes_from_the_option_too(monkeypatch):
    monkeypatch.setenv("JUPYTER_ELASTIC_LOGICAL_WORKERS", "3")
    assert State().logical_workers == 3
    assert State(logical_workers=2).logical_workers == 2
