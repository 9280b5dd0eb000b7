from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from jupyter_elastic import training
from jupyter_elastic.training.context import context
from jupyter_elastic.training.frameworks.torch import pack, unpack
from jupyter_elastic.training.group import SingleProcess
from jupyter_elastic.training.state import State, commits_of
from jupyter_elastic.types.errors import BadRequest, EngineError

X = torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
Y = X @ torch.tensor([1.0, -2.0, 3.0, 0.5])


def losses(optimizer_of, *, micro_batch=None, epochs=2, clip=False):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = optimizer_of(model.parameters())
    state = State(model=model, optimizer=optimizer)
    found = []

    @training.run
    def train(state):
        for _ in state.epochs(epochs):
            for x, y in training.batches((X, Y), 16, micro_batch=micro_batch):
                loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
                optimizer.zero_grad()
                loss.backward()
                if clip and training.torch.synchronize(optimizer):
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
            found.append(torch.nn.functional.mse_loss(model(X).squeeze(1), Y).item())
        return found

    assert train(state) is found
    return found


@pytest.mark.parametrize("micro_batch", [1, 3, 5, 100])
@pytest.mark.parametrize(
    "optimizer",
    [lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.5, weight_decay=0.1), lambda p: torch.optim.AdamW(p, lr=0.01)],
)
def test_micro_batches_train_as_whole_ones_do(optimizer, micro_batch):
    whole = losses(optimizer)
    assert whole[-1] < whole[0]
    assert losses(optimizer, micro_batch=micro_batch) == pytest.approx(whole, rel=1e-4)


def test_clipping_sees_the_global_gradient():
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.05)

    whole = losses(sgd, clip=True)
    assert whole != pytest.approx(losses(sgd))
    assert losses(sgd, clip=True, micro_batch=5) == pytest.approx(whole, rel=1e-4)


def test_models_optimizers_and_schedulers_go_back_to_the_commit():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    state = State(model=model, optimizer=optimizer, scheduler=scheduler, best=1)

    def step():
        optimizer.zero_grad()
        model(X).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()

    def everything():
        return (
            [p.tolist() for p in model.state_dict().values()],
            scheduler.get_last_lr(),
            optimizer.state_dict()["state"],
        )

    step()
    state.commit()
    weights, rate, moments = (torch.utils._pytree.tree_map(lambda t: t.clone() if hasattr(t, "clone") else t, part)
                              for part in everything())  # fmt: skip
    step()
    assert everything()[0] != weights
    state.restore()
    again = everything()
    assert again[0] == weights
    assert again[1] == rate
    assert all(torch.equal(again[2][i][k], moments[i][k]) for i in moments for k in moments[i])


def test_a_commit_travels_into_an_optimizer_that_never_stepped():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    state = State(model=model, optimizer=optimizer)
    blob = commits_of(state).encoded()
    context.group = SingleProcess()
    model(X).mean().backward()
    optimizer.step()
    assert optimizer.state_dict()["state"]
    commits_of(state).decode(blob)
    assert optimizer.state_dict()["state"] == {}
    assert commits_of(State(model=torch.nn.Linear(4, 1))).framework == "torch"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_packing_keeps_every_type_and_shape(dtype, shape):
    tensor = torch.arange(12)[: max(1, torch.Size(shape).numel())].reshape(shape).to(getattr(torch, dtype))
    back = unpack(pack({"a": [tensor, (1, "b")]}))["a"]
    assert back[1] == (1, "b")
    assert back[0].dtype == tensor.dtype
    assert torch.equal(back[0], tensor)


def test_an_unused_parameter_stays_unused():
    torch.manual_seed(0)
    used, unused = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*used.parameters(), *unused.parameters()], lr=0.1, weight_decay=0.5)
    before = unused.weight.clone()

    @training.run
    def train(state):
        for _ in state.epochs(1):
            for (x,) in training.batches((X,), 16):
                optimizer.zero_grad()
                used(x).mean().backward()
                optimizer.step()

    train(State(used=used, unused=unused, optimizer=optimizer))
    assert torch.equal(unused.weight, before)


def test_a_prepared_optimizer_outside_of_run_is_refused_in_a_job(memory):
    model = torch.nn.Linear(4, 1)
    optimizer = training.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    model(X).mean().backward()
    with pytest.raises(EngineError, match=r"under @training.run"):
        optimizer.step()


def test_a_prepared_optimizer_outside_of_a_job_is_what_it_was():
    model = torch.nn.Linear(4, 1)
    optimizer = training.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    assert training.prepare(optimizer) is optimizer
    model(X).mean().backward()
    before = model.weight.clone()
    optimizer.step()
    assert torch.allclose(model.weight, before - 0.1 * model.weight.grad)


def test_a_torch_data_set_comes_in_tensors():
    data = torch.utils.data.TensorDataset(X, Y)
    x, y = next(iter(training.batches(data, 8)))
    assert x.shape == (8, 4)
    assert y.shape == (8,)


def test_two_frameworks_in_one_state_are_refused():
    class Other:
        framework = "tensorflow"

        def capture(self):
            return None

        def reset(self):
            pass

    state = State(model=torch.nn.Linear(1, 1))
    state._parts["other"] = Other()
    with pytest.raises(BadRequest, match=r"tensorflow and torch"):
        _ = commits_of(state).framework


def test_lazy_layers_are_refused_until_they_have_parameters():
    model = torch.nn.LazyLinear(1)
    with pytest.raises(BadRequest, match=r"lazy layers.*Call it once with a sample"):
        State(model=model)
    model(X)
    assert commits_of(State(model=model)).framework == "torch"


def test_parameters_that_a_newcomer_does_not_have_are_named():
    def state(groups):
        model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        if groups > 1:
            optimizer.add_param_group({"params": model[1].parameters()})
        return State(model=model, optimizer=optimizer)

    with pytest.raises(
        BadRequest, match=r"A SGD of the state can't take up.*different number of parameter groups.*on every worker"
    ):
        commits_of(state(1)).decode(commits_of(state(2)).encoded())
