"""`--out`: each name by itself; what can be had comes back, and nothing that the notebook has is changed by it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

from jupyter_elastic.client import pickling
from jupyter_elastic.client.job import Job
from jupyter_elastic.jobfiles import results
from jupyter_elastic.jobfiles.call_files import CallResult, Raised, ResultKind
from jupyter_elastic.types import JobInfo, JobSpec
from jupyter_elastic.types.errors import ElasticError


def pack(values: dict[str, Any]) -> bytes:
    """What a worker leaves of these values."""
    return results.pack(values)


def job(folder: Path, *ranks: bytes) -> Job:
    spec = JobSpec(name="n", folder=str(folder), python="/p", min_slots=1, max_slots=2)
    handle = Job(None, 7)  # type: ignore[arg-type]
    handle._known = JobInfo(job=7, owner="ann", spec=spec, phase="completed", submitted_at=1.0)
    (folder / "results").mkdir()
    for rank, data in enumerate(ranks):
        (folder / "results" / f"rank.{rank}.pickle").write_bytes(data)
    return handle


def notebook(source: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(source, namespace)
    return namespace


class Unreadable:
    """Can be pickled, and not be read where it goes."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        return (eval, (self.how,))


# --- name by name


@pytest.mark.parametrize(
    ("net", "why"),
    [
        ((n for n in [1]), "generator"),
        (threading.Lock(), "can't be sent back"),
        (Unreadable("1 / 0"), "can't be read here: ZeroDivisionError"),
        (Unreadable("__import__('no_such_module')"), "is a module missing"),
        (Unreadable("exit(3)"), "can't be read here: SystemExit"),
        (type("Exits", (), {"__reduce__": lambda _: sys.exit(3)})(), "can't be sent back"),
    ],
)
def test_what_can_be_had_comes_back_and_the_rest_is_named(tmp_path: Path, net: Any, why: str) -> None:
    handle = job(tmp_path, pack({"history": [1, 2], "net": net}))
    assert handle.results == {0: {"history": [1, 2]}}
    with pytest.warns(UserWarning, match="`net` did not come back: ") as told:
        found = handle.result()
    assert found == {"history": [1, 2]}
    assert why in str(told[0].message)
    with pytest.raises(ElasticError, match="`net` did not come back"):
        found["net"]
    with pytest.raises(KeyError):
        found["never"]


def test_the_only_name_that_did_not_come_back_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ElasticError, match="`net` did not come back: a generator can't be sent back"):
        job(tmp_path, pack({"net": (n for n in [1])})).result()


def test_what_names_share_they_share_afterwards(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(2, 1)
    rows: list[int] = [1]
    values = {
        "net": net, "opt": torch.optim.Adam(net.parameters()), "rows": rows, "both": (rows, rows),
        "alone": torch.ones(2), "lost": Unreadable("1 / 0"),
    }  # fmt: skip
    found = job(tmp_path, pack(values)).results[0]
    assert found["opt"].param_groups[0]["params"][0] is found["net"].weight
    assert found["both"][0] is found["rows"]
    assert found["both"][1] is found["rows"]
    assert found["alone"].tolist() == [1, 1]
    assert "lost" not in found


def test_arrays_of_one_kind_are_not_lost_together(tmp_path: Path) -> None:
    import numpy as np

    class Model(Unreadable):
        def __reduce__(self) -> Any:
            return (eval, (self.how, {"weights": np.ones(2)}))

    found = job(tmp_path, pack({"model": Model("1 / 0"), "losses": np.zeros(3)})).results[0]
    assert found["losses"].tolist() == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("wrap", ["DataParallel", "compile", "in a list"])
def test_wrapped_models_give_their_module(tmp_path: Path, wrap: str) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(2, 1)
    made = torch.compile(net) if wrap == "compile" else torch.nn.DataParallel(net)
    found = job(tmp_path, pack({"net": [made] if wrap == "in a list" else made, "more": net})).results[0]
    back = found["net"][0] if wrap == "in a list" else found["net"]
    assert type(back) is torch.nn.Linear
    assert back is found["more"]
    assert torch.equal(back.weight, net.weight)


def test_a_model_in_ddp_gives_its_module(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch import distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        data = pack({"net": torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))})
    finally:
        dist.destroy_process_group()
    assert type(job(tmp_path, data).result()) is torch.nn.Linear


def test_the_way_for_a_parametrized_model_is_said(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 1)))
    with pytest.raises(ElasticError, match=r"net\.state_dict\(\)"):
        job(tmp_path, pack({"net": net})).result()


def test_results_of_older_versions_are_read(tmp_path: Path) -> None:
    assert job(tmp_path, cloudpickle.dumps({"a": 1, "b": [2]})).result() == {"a": 1, "b": [2]}


# --- what the notebook has stays as it is

TRIAL = """
import abc, enum
class Trial:
    made, best, tries = 0, None, []
    def __init__(self, lr): self.lr = lr
    def name(self): return "old"
class Plugin:
    registry = []
    def __init_subclass__(cls, **more): Plugin.registry.append(cls.__name__)
class Mine(Plugin): pass
class Shape(abc.ABC): pass
class Color(enum.Enum):
    RED = 1
    label = property(lambda self: "old")
class Square: pass
"""


def worker(values: Any, change: str) -> bytes:
    """In a process of its own: read these values as `v`, change what they are of, and give them back."""
    code = (
        "import sys, cloudpickle; v = cloudpickle.loads(sys.stdin.buffer.read())\n"
        f"{change}\nsys.stdout.buffer.write(cloudpickle.dumps({{'found': v}}))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], input=cloudpickle.dumps(values), capture_output=True, check=True
    ).stdout


def read(folder: Path, data: bytes, way: str) -> Any:
    if way == "out":
        return job(folder, data).result()
    problem, value = pickling.outcome(CallResult(0, ResultKind.PICKLED, data))
    assert problem is None
    return value["found"]


@pytest.mark.parametrize("way", ["out", "submit"])
def test_a_result_leaves_the_classes_of_the_notebook_as_they_are(tmp_path: Path, way: str) -> None:
    space = notebook(TRIAL)
    trial, mine, shape, color, square = (space[name] for name in ("Trial", "Mine", "Shape", "Color", "Square"))
    change = "k = type(v[0]); k.made = 7; k.tries.append(1); k.extra = 2; v[2].register(v[4])"
    data = worker([trial(0.1), mine(), shape, color.RED, square], change)
    trial.best, trial.name = "mine", lambda _: "new"
    color.label = property(lambda _: "new")
    registered = list(space["Plugin"].registry)
    first, second, third, red, _ = read(tmp_path, data, way)
    assert (type(first), first.lr, type(second), third, red) == (trial, 0.1, mine, shape, color.RED)
    assert (trial.made, trial.best, trial.tries, first.name(), hasattr(trial, "extra")) == (0, "mine", [], "new", False)
    assert color.RED.label == "new"
    assert space["Plugin"].registry == registered
    assert not issubclass(square, shape)


@pytest.mark.parametrize("way", ["out", "submit"])
def test_a_class_that_the_notebook_lacks_is_made_whole(tmp_path: Path, way: str) -> None:
    source = (
        "class Made:\n    kind = 3\n    def get(self): return self.kind\nclass Below(Made): pass\nv = [Below(), Made()]"
    )
    below, made = read(tmp_path, worker([], f"exec({source!r}, globals())"), way)
    assert (below.get(), made.get(), isinstance(below, type(made))) == (3, 3, True)


def test_an_exception_of_the_notebooks_own_class_leaves_it_as_it_is() -> None:
    space = notebook("class Bad(Exception):\n    seen = 1\n")
    bad = space["Bad"]
    data = worker([bad("x")], "type(v[0]).seen = 5; v = v[0]")
    _, value = pickling.outcome(CallResult(0, ResultKind.PICKLED, data))
    pickled = cloudpickle.dumps(value["found"])
    raised = Raised(type="Bad", message="x", traceback="", pickled=pickled)
    bad.seen = 2
    problem, _ = pickling.outcome(CallResult(0, ResultKind.RAISED, msgspec.msgpack.encode(raised)))
    assert type(problem) is bad
    assert bad.seen == 2
