"""Which engine a cell gets, and what is said of one that it can't have."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_elastic.engines.process import Process
from jupyter_elastic.jobfiles.cell_hints import CellText, Claim, EngineFit
from jupyter_elastic.jobfiles.payload import Payload
from jupyter_elastic.kernel import submission
from jupyter_elastic.kernel.cell_options import CellOptions
from jupyter_elastic.kernel.submission import check_engine, choose_engine
from jupyter_elastic.platform import entry_points
from jupyter_elastic.types.capabilities import Capabilities
from jupyter_elastic.types.errors import BadRequest, EngineError


def test_an_engine_that_is_not_built_is_refused_before_anything_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(BadRequest, match="build-horovod"):
        check_engine("horovod")
    check_engine("process")


def test_servers_are_refused_where_there_are_none_and_asked_for_where_they_are_needed() -> None:
    with pytest.raises(BadRequest, match="--servers: the engine process has no parameter servers"):
        check_engine("process", servers=1)
    with pytest.raises(BadRequest, match="--engine tensorflow_ps: it needs at least one parameter server"):
        check_engine("tensorflow_ps")
    check_engine("tensorflow_ps", servers=1)


def test_an_engine_that_starts_nothing_anew_is_refused_for_a_resumable_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    check_engine("process", resumable=True)
    monkeypatch.setattr(Process, "capabilities", Capabilities())
    with pytest.raises(BadRequest, match="--resumable: the engine process can't"):
        check_engine("process", resumable=True)


def test_an_engine_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(BadRequest, match=r"installed are .*process"):
        check_engine("carrier-pigeon")


def test_an_engine_for_other_jobs_than_cells_is_refused_and_not_offered() -> None:
    with pytest.raises(BadRequest, match="--engine functions: it runs no cells"):
        check_engine("functions")
    with pytest.raises(BadRequest, match="installed are horovod, process"):
        check_engine("carrier-pigeon")


CELLS = {
    "print(1)": "process",
    "import torch\ntorch.ones(2)": "process",
    "# as horovod and the others do\nprint(1)": "process",
    "import horovod.torch as hvd": "horovod",
    "import torch, horovod.torch as hvd\nimport torch.distributed as dist": "horovod",
    "from jupyter_elastic import training\nimport torch": "horovod",
    "import tensorflow as tf": "horovod",
    "import torch.distributed as dist": "torch",
    "from accelerate import Accelerator": "torch",
    "import lightning": "torch",
    "from transformers import Trainer": "torch",
    "from transformers import pipeline": "process",
}
WITHOUT_HOROVOD = {
    "from jupyter_elastic import training\nimport torch": "torch",
    "from jupyter_elastic import training": "torch",
    "from jupyter_elastic import training\nimport keras": "process",
    "import tensorflow as tf": "process",
    "import torch.distributed as dist": "torch",
}


def cell(source: str, **more: Any) -> Payload:
    return Payload(**{"source": source, "filename": "<In[1]>", "first_line": 2, "names": b"", **more})


@pytest.mark.parametrize(
    ("source", "built", "engine"),
    [(source, True, engine) for source, engine in CELLS.items()]
    + [(source, False, engine) for source, engine in WITHOUT_HOROVOD.items()],
)
def test_a_cell_that_names_no_engine(source: str, *, built: bool, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"torch", "horovod"} if built else {"torch"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in present else None)
    choice = choose_engine(cell(source), CellOptions())
    assert choice.engine == engine
    assert choice.why.startswith("the cell ")
    assert choose_engine(cell(source), CellOptions(engine="process"))[:2] == ("process", "")


@pytest.mark.parametrize(
    ("source", "hosts"),
    [
        ("import torch.distributed as dist", (False, False)),
        ("import torch.distributed as dist\nos.environ['MASTER_ADDR'] = address", (True, False)),
        ("import torch.distributed as dist\nos.environ['MASTER_ADDR'] == address", (False, False)),
        ("import torch.distributed as dist\n'file:///tmp/meet'", (True, False)),
        ("import torch.multiprocessing as mp\nimport torch.distributed as dist\nmp.spawn(main)", (True, False)),
        ("import lightning", (True, False)),
        ("from jupyter_elastic import training\nimport torch.distributed\ntraining.run", (False, False)),
        ("import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()", (False, False)),
        ("import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()\n'localhost:1'", (True, False)),
        ("serve('localhost')", (False, False)),
        ("import tensorflow as tf, keras", (False, False)),
        ("import tensorflow as tf\ntf.distribute.ParameterServerStrategy", (False, True)),
    ],
)
def test_whether_a_cell_keeps_to_one_host_or_to_this_one(source: str, hosts: tuple[bool, bool]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    assert choose_engine(cell(source), CellOptions(max_servers=int(hosts[1])))[2:4] == hosts


def test_horovod_on_another_engine_is_refused_where_workers_would_train_apart() -> None:
    for engine in ("process", "torch"):
        with pytest.raises(BadRequest, match=f"--engine {engine}: the engine 'horovod' alone runs this cell"):
            choose_engine(cell("import horovod.torch as hvd"), CellOptions(engine=engine, max_slots=2))


def test_a_cell_that_imports_horovod_is_refused_where_it_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(BadRequest, match="the cell imports it: --engine horovod: Horovod is not built"):
        choose_engine(cell("import horovod.torch as hvd"), CellOptions())


def test_what_the_cells_own_modules_import_counts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "__init__.py").write_text("")
    (tmp_path / "ours" / "deep.py").write_text("import helper_of_ours\n")
    (tmp_path / "helper_of_ours.py").write_text("import torch.distributed as dist\n")
    (tmp_path / "another.py").write_text("import horovod.torch as hvd\n")
    folder = (str(tmp_path),)
    assert choose_engine(cell("import ours", sys_path=folder), CellOptions()).engine == "torch"
    captured = cell("run()", uses=("ours.run",), sys_path=folder)
    assert choose_engine(captured, CellOptions()).engine == "torch"
    assert choose_engine(cell("print(1)", sys_path=folder), CellOptions()).engine == "process"


def test_an_installed_engine_joins_in_and_one_that_is_broken_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mpi:
        library = ("mpi4py",)

        @classmethod
        def missing(cls) -> str:
            return ""

        @classmethod
        def claim(cls, found: CellText) -> Claim | None:
            return Claim(EngineFit.OWN, "the cell imports mpi4py") if found.library else None

    installed = {**submission._engines(), "mpi": "mpi", "broken": "broken"}

    def load(entries: Any) -> Any:
        if entries == "broken":
            raise EngineError("it can't be loaded")
        return Mpi if entries == "mpi" else entry_points.load(entries)

    monkeypatch.setattr(submission, "_engines", lambda: installed)
    monkeypatch.setattr(submission, "entry_points", SimpleNamespace(load=load))
    assert choose_engine(cell("from mpi4py import MPI"), CellOptions())[:2] == (
        "mpi",
        "the cell imports mpi4py",
    )
    assert choose_engine(cell("print(1)"), CellOptions()).engine == "process"
