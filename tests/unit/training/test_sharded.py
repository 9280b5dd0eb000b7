"""A state that makes its objects anew, sharded over each group: what it refuses, and that a commit holds all of it."""

from __future__ import annotations

import gc
import weakref

import pytest

from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.training import State, batches, link, wrap
from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import SingleProcess
from jupyter_elastic.training.run import run
from jupyter_elastic.training.state import commits_of
from jupyter_elastic.types.errors import BadRequest
from tests.unit.training.conftest import MemorySession, OneGroups

torch = pytest.importorskip("torch")
fsdp = pytest.importorskip("torch.distributed.fsdp")
checkpoint = pytest.importorskip("torch.distributed.checkpoint")
dist = torch.distributed


class ElasticGroup:
    """A group with one member, and no `SingleProcess`."""

    vars().update({name: value for name, value in vars(SingleProcess).items() if not name.startswith("__")})
    elastic = True


class ShardingGroup(ElasticGroup):
    """One of torch.distributed's."""

    shards = True

    def join(self):
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def leave(self):
        dist.destroy_process_group()


class ShardingGroups(OneGroups):
    """Groups over which a model can be sharded."""

    def group(self, framework):
        return ShardingGroup()


class JobSession(MemorySession):
    """A session with a job's folder."""

    def __init__(self, folder):
        super().__init__()
        self.groups = ShardingGroups()
        self.commits = Commits(folder)

    def save_shards(self, folder, *commit, durable=False):
        self.commits.save_shards(folder, *commit, durable=durable)

    def new_shards(self, *, disk=False):
        return self.commits.new_shards(disk=disk)

    def load_shards(self):
        return self.commits.load_shards()


@pytest.fixture
def job(tmp_path, monkeypatch):
    (tmp_path / "job").mkdir()
    made = JobSession(tmp_path / "job")
    monkeypatch.setattr(link, "current", made)
    monkeypatch.setenv("WORLD_SIZE", "1")
    yield made
    made.commits.drop_from_memory()
    if dist.is_initialized():
        dist.destroy_process_group()


def make(mesh):
    model = torch.nn.Linear(4, 2)
    fsdp.fully_shard(model, mesh=mesh)
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.1)}


@run
def nothing(state):
    return state.model.weight.full_tensor().detach().clone()


def step(state):
    state.optimizer.zero_grad()
    state.model(torch.ones(1, 4)).square().sum().backward()
    state.optimizer.step()


def test_another_attempt_has_weights_moments_and_values(job):
    @run
    def train(state):
        for _ in range(3):
            step(state)
        state.best = 7
        state.commit()
        return state.model.weight.full_tensor(), state.optimizer.state_dict()["state"][0]

    weight, moments = train(State(factory=make, best=0))
    dist.destroy_process_group()
    job.begin_cell()

    @run
    def look(state):
        found = state.optimizer.state_dict()["state"][0]
        assert torch.equal(state.model.weight.full_tensor(), weight)
        assert torch.equal(found["exp_avg"].full_tensor(), moments["exp_avg"].full_tensor())
        assert torch.equal(found["exp_avg_sq"].full_tensor(), moments["exp_avg_sq"].full_tensor())
        assert found["step"] == moments["step"] == 3
        return state.best

    assert look(State(factory=make, best=0)) == 7


def test_a_group_that_is_over_is_let_go(job):
    """Else each generation would leave its connections and threads behind."""
    state = State(factory=make)
    nothing(state)
    group = weakref.ref(dist.group.WORLD)
    commits_of(state).drop()
    dist.destroy_process_group()
    gc.collect()
    assert group() is None


def test_all_members_begin_with_what_rank_0_draws(job):
    """And a factory leaves the cell's own random numbers as they were."""
    torch.manual_seed(5)
    expected = torch.nn.Linear(4, 2).weight
    drawn = torch.rand(1)
    torch.manual_seed(5)
    torch.nn.Linear(4, 2)
    assert torch.equal(nothing(State(factory=make)), expected)
    assert torch.equal(torch.rand(1), drawn)


def test_wrap_gives_it_back(job):
    @run
    def train(state):
        return wrap(state.model) is state.model

    assert train(State(factory=make))


def test_restored_within_the_group(job):
    @run
    def train(state):
        state.commit()
        before = state.model.weight.full_tensor().detach().clone()
        step(state)
        assert not torch.equal(state.model.weight.full_tensor(), before)
        state.restore()
        return torch.equal(state.model.weight.full_tensor(), before)

    assert train(State(factory=make))


def test_shared_memory_that_is_full(job, monkeypatch):
    write = checkpoint.FileSystemWriter.write_data

    def full(self, *args):
        if str(self.path).startswith("/dev/shm"):
            raise OSError(28, "No space left on device")
        return write(self, *args)

    monkeypatch.setattr(checkpoint.FileSystemWriter, "write_data", full)
    weight = nothing(State(factory=make))
    assert job.commits.load_shards()[1].parent == job.commits.disk.parent
    dist.destroy_process_group()
    job.begin_cell()
    assert torch.equal(nothing(State(factory=make)), weight)


def test_a_disk_that_is_full_is_said(job, monkeypatch):
    def full(self, *args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.FileSystemWriter, "write_data", full)
    with pytest.raises(Exception, match=r"can't be written[\s\S]*No space left"):
        nothing(State(factory=make))


def whole(mesh):
    model = torch.nn.Linear(4, 2)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters())}


def over_another_mesh(mesh):
    model = torch.nn.Linear(4, 2)
    fsdp.fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    return {"model": model}


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda mesh: torch.nn.Linear(4, 2), "objects by name.*not Linear"),
        (lambda mesh: {}, "objects by name"),
        (lambda mesh: {**make(mesh), "best": 3}, "returns int as 'best'"),
        (lambda mesh: {**make(mesh), "epoch": make(mesh)["model"]}, "'epoch', and the state has that already"),
        (whole, "no model that is sharded"),
        (over_another_mesh, "another mesh"),
    ],
)
def test_a_factory_that_returns_something_else(job, factory, message):
    with pytest.raises(BadRequest, match=message):
        nothing(State(factory=factory))


def test_no_function():
    with pytest.raises(BadRequest, match="factory=make, without calling it"):
        State(factory={"model": torch.nn.Linear(4, 2)})


@pytest.mark.parametrize("name", ["model", "optimizer"])
def test_objects_beside_a_factory(job, name):
    model = torch.nn.Linear(4, 2)
    given = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}[name]
    with pytest.raises(BadRequest, match=f"state.{name} can't be set"):
        State(factory=make, **{name: given})


def test_a_sharded_model_without_a_factory(job):
    ShardingGroup().join()
    made = make(dist.init_device_mesh("cpu", (1,)))
    for name, value in made.items():
        with pytest.raises(BadRequest, match="factory=make"):
            State(**{name: value})


def test_logical_workers(monkeypatch):
    with pytest.raises(BadRequest, match="leave logical_workers"):
        State(factory=make, logical_workers=2)
    monkeypatch.setenv("JUPYTER_ELASTIC_LOGICAL_WORKERS", "2")
    with pytest.raises(BadRequest, match="leave logical_workers"):
        State(factory=make)


def test_an_engine_that_forms_another_group(memory, monkeypatch):
    monkeypatch.setattr(memory.groups, "group", lambda framework: ElasticGroup(), raising=False)
    with pytest.raises(BadRequest, match=r"not torch.distributed's: run the cell under `%%distribute --engine torch`"):
        nothing(State(factory=make))


def test_no_group(monkeypatch):
    monkeypatch.setattr(link, "current", None)
    with pytest.raises(BadRequest, match="here is no group"):
        nothing(State(factory=make))


def test_outside_of_the_function():
    with pytest.raises(AttributeError, match=r"within the function under @training.run"):
        State(factory=make).model  # noqa: B018


def test_a_torch_that_cannot_weigh_gradients(monkeypatch):
    monkeypatch.delattr(fsdp.FSDPModule, "set_custom_reduce_scatter")
    with pytest.raises(BadRequest, match="needs a newer PyTorch"):
        State(factory=make)


def test_pieces_of_a_batch_on_one_worker(job):
    """There FSDP adds nothing up over a group, so that the pieces' shares count at the optimizer's step."""
    x = torch.arange(20.0).reshape(5, 4)

    def train(state):
        for (inputs,) in batches((x,), 5, micro_batch=2):
            state.optimizer.zero_grad()
            state.model(inputs).square().mean().backward()
            state.optimizer.step()
        return state.model.weight

    torch.manual_seed(5)
    mine = run(train)(State(factory=lambda mesh: {**make(mesh)})).full_tensor()
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(x).square().mean().backward()
    optimizer.step()
    assert torch.allclose(mine, model.weight, atol=1e-6)
    assert context.reducers


def test_on_several_hosts_it_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_elastic.training.frameworks.sharded import Factory

    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(BadRequest, match=r"on several hosts.*jupyter elastic host drain"):
        Factory(lambda _: {}).build(0)


def test_a_state_that_is_trained_again_goes_on_from_what_it_was(job):
    found = []

    @run
    def train(state):
        for commits in (True, False):
            found.append([p.full_tensor().detach().clone() for p in state.model.parameters()])
            found[-1] += [s["exp_avg"].full_tensor().clone() for s in state.optimizer.state_dict()["state"].values()]
            if commits:
                state.commit()
            step(state)
        return [p.full_tensor().detach().clone() for p in state.model.parameters()]

    state = State(factory=make)
    ended = train(state)
    train(state)
    assert all(map(torch.equal, found[2][:2], ended)), "what came after the last commit is there too"
    assert len(found[2]) == 4
    assert not torch.equal(nothing(State(factory=make)), state.model.weight.full_tensor()), "another one begins anew"
