"""What is told of a cell comes from its code and from what it takes along, never from words that stand there."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from jupyter_elastic.engines.common.cell_text import read_cell
from jupyter_elastic.jobfiles.cell_hints import CellText
from jupyter_elastic.jobfiles.payload import Payload
from jupyter_elastic.kernel import submission
from jupyter_elastic.kernel.cell_options import CellOptions
from jupyter_elastic.kernel.submission import choose_engine
from jupyter_elastic.types.errors import BadRequest
from tests.support import packages
from tests.support.packages import arrived, notebook

WORDS = (
    "jupyter_elastic.training.run horovod.torch hvd.elastic torch.distributed keras tensorflow lightning accelerate "
    "transformers Trainer LOCAL_RANK local_rank MultiWorkerMirroredStrategy ParameterServerStrategy init_process_group"
)
PLAIN = CellText()
MENTIONS = {
    "a function": "def f(x): return x\n",
    "a class": "class F:\n    def __call__(self, x): return x\nf = F()\n",
    "a doc string": f"def f(x):\n    '''{WORDS}'''\n    return x\n",
    "a text in a function": f"def f(x): return '{WORDS}'\n",
    "a value": f"f = print\nmore = {WORDS.split()!r}\n",
    "a dictionary's keys": f"f = dict.fromkeys({WORDS.split()!r}).get\n",
    "an attribute": "class F:\n    keras = torch = elastic = hvd = 1\ndef f(x): return F.keras + F.elastic + F.hvd\n",
    "a comment": f"def f(x):\n    # {WORDS}\n    return x\n",
    "an enum's names": "import enum\nf = enum.Enum('Library', 'keras torch horovod lightning')\n",
}


def pack(cell: str, source: str) -> Payload:
    return arrived(packages.pack(cell, notebook(source)))


@pytest.mark.parametrize("kind", MENTIONS)
def test_what_only_mentions_a_library_claims_nothing(kind: str) -> None:
    payload = pack("print(f, more)" if kind == "a value" else "print(f)", MENTIONS[kind])
    assert read_cell(payload, ("horovod", "hvd")) == PLAIN
    assert choose_engine(payload, CellOptions()).engine == "process"


@pytest.mark.parametrize(
    "cell",
    [
        "!ls",
        "!echo run training",
        "print('horovod keras torch lightning elastic')",
        "# import torch, keras: elastic training by jupyter_elastic\nprint(1)",
        "elastic = 'rubber'\nprint(elastic)",
    ],
)
def test_a_cell_s_own_words_and_commands_claim_nothing(cell: str) -> None:
    assert read_cell(pack(cell, ""), ("horovod", "hvd")) == PLAIN


@pytest.mark.parametrize("source", ["", "from jupyter_elastic import training\ndef report(): training.report(step=1)"])
def test_a_cell_that_uses_training_and_runs_a_command_has_no_elastic_loop(source: str) -> None:
    cell = "import subprocess\nfrom jupyter_elastic import training\nsubprocess.run(['ls'])"
    found = read_cell(pack("report()" if source else cell, source), ())
    assert (found.training, found.elastic) == (True, False)


TRUE = {
    "def f():\n    import keras\n    return keras.ops.ones(1)": {"frameworks": ("tensorflow",)},
    "def f():\n    import torch as t\n    return t.ones(1)": {"frameworks": ("torch",)},
    "from jupyter_elastic import training\n@training.run\ndef f(state): pass": {"training": True, "elastic": True},
    "def f():\n    from jupyter_elastic import training as t\n    @t.run\n    def fit(state): pass\n": {
        "elastic": True
    },
    "def f():\n    from jupyter_elastic.training import run\n    return run(print)\n": {"elastic": True},
    "def f():\n    import jupyter_elastic.training\n    jupyter_elastic.training.run(f)\n": {"elastic": True},
    "def f():\n    import horovod.torch as h\n    h.elastic.run(f)": {"library": True, "elastic": True},
    "def f():\n    import horovod.torch as h\n    def g(): return h.elastic.run(f)": {"elastic": True},
    "class F:\n    def go(self):\n        import horovod.torch as hvd\n        hvd.init()\nf = F()": {"library": True},
    "f = lambda: __import__('os').environ['LOCAL_RANK']": {"pins": True},
    "import torch\nf = torch.nn.Linear(1, 1)": {"frameworks": ("torch",), "torch_distributed": False},
    "import torch\ndef f(): torch.distributed.init_process_group()": {"torch_distributed": True},
    "import torch.distributed as dist\ndef f(): dist.barrier()": {"torch_distributed": True, "pins": True},
    "from torch.distributed import barrier as f": {"torch_distributed": True},
    "def f():\n    from lightning import Trainer": {"torch_distributed": True},
    "def f():\n    import torch.distributed as d\n    d.init_process_group('gloo', 'tcp://localhost:1')": {
        "meets_here": True
    },
    "def f():\n    import tensorflow as tf\n    tf.distribute.MultiWorkerMirroredStrategy()": {"tf_cluster": True},
    "def f():\n    import tensorflow as tf\n    tf.distribute.ParameterServerStrategy": {"tf_servers": True},
}


BY_A_CALL = {
    "import importlib\ndef f():\n    h = importlib.import_module('horovod.torch')\n    h.init()": {"library": True},
    "from importlib import import_module as load\ndef f(): load('horovod.torch').elastic.run(f)": {
        "library": True, "elastic": True,
    },
    "f = lambda: __import__('torch.distributed').distributed.barrier()": {"torch_distributed": True},
    "def f():\n    import importlib\n    return importlib.import_module('keras').ops": {"frameworks": ("tensorflow",)},
    "def f():\n    import importlib\n    return importlib.import_module('json'), 'keras', 'horovod'": {
        "frameworks": (), "library": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("source", BY_A_CALL)
def test_an_import_by_a_call_is_one(source: str) -> None:
    found = read_cell(pack("print(f)", source), ("horovod", "hvd"))
    assert {name: getattr(found, name) for name in BY_A_CALL[source]} == BY_A_CALL[source]


@pytest.mark.parametrize("source", TRUE)
def test_what_a_captured_function_or_value_uses_counts(source: str) -> None:
    pytest.importorskip("torch")
    found = read_cell(pack("print(f)", source), ("horovod", "hvd"))
    assert {name: getattr(found, name) for name in TRUE[source]} == TRUE[source]


@pytest.mark.parametrize(
    ("cell", "elastic"),
    [
        ("@training.run\ndef fit(state): pass", True),
        ("training.log('here')", False),
        ("@go\ndef fit(state): pass", True),
    ],
)
def test_a_module_that_the_notebook_has_imported_is_meant_by_its_name(cell: str, *, elastic: bool) -> None:
    source = "from jupyter_elastic import training\nfrom jupyter_elastic.training import run as go"
    found = read_cell(pack(cell, source), ())
    assert (found.training, found.elastic) == (True, elastic)


def test_a_payload_of_an_older_version_is_read_by_its_text() -> None:
    old = Payload(source="import horovod.torch as hvd", filename="", first_line=1, names=b"")
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(old))
    fields.pop("uses", None)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Payload)
    assert read_cell(read, ("horovod", "hvd")).library


def test_a_module_of_the_folder_that_a_captured_function_comes_from_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ours_for_facts.py").write_text("import torch.distributed as dist\ndef go(): dist.barrier()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert choose_engine(pack("f()", "from ours_for_facts import go as f"), CellOptions()).engine == "torch"
    sys.modules.pop("ours_for_facts")


# --- what an installer has put on the path is not the cell's own


LIBRARY = "import torch.distributed\nimport tensorflow as tf\ntf.distribute.ParameterServerStrategy\n"


def installed(folder: Path, name: str) -> tuple[str, ...]:
    """A library as `pip install --target` leaves it: with its record beside it."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(LIBRARY)
    record = folder / f"{name}-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(f"{name}/__init__.py,,\n{name}-1.0.dist-info/RECORD,,\n")
    return (str(folder),)


@pytest.mark.parametrize(
    "below", ["target", "lib/python3.11/site-packages", "usr/lib/python3/dist-packages", ".local/share/eggs/big.egg"]
)
def test_installed_libraries_choose_no_engine(tmp_path: Path, below: str) -> None:
    path = installed(tmp_path / below, "big_library")
    payload = Payload(source="import big_library", filename="", first_line=1, names=b"", sys_path=path)
    assert choose_engine(payload, CellOptions()).engine == "process"


@pytest.mark.parametrize("beside", [False, True])
def test_the_own_project_beside_installed_libraries_or_editable_counts(tmp_path: Path, *, beside: bool) -> None:
    pytest.importorskip("torch")
    path = installed(tmp_path, "big_library") if beside else (str(tmp_path),)
    (tmp_path / "my_project.egg-info").mkdir()
    (tmp_path / "my_project.egg-info" / "top_level.txt").write_text("my_project\n")
    (tmp_path / "my_project").mkdir()
    (tmp_path / "my_project" / "__init__.py").write_text("from torch import distributed\n")
    payload = Payload(source="import my_project", filename="", first_line=1, names=b"", sys_path=path)
    assert choose_engine(payload, CellOptions()).engine == "torch"


def test_own_modules_are_followed_by_imports_and_not_by_words(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("import torch.distributed\n")
    (tmp_path / "mine.py").write_text("'''import setup'''\nprint('setup done')  # setup\n")
    payload = Payload(source="import mine", filename="", first_line=1, names=b"", sys_path=(str(tmp_path),))
    assert choose_engine(payload, CellOptions()).engine == "process"


def test_no_more_text_than_the_bound_is_read(tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide" / "__init__.py").write_text("")
    for number in range(40):
        (tmp_path / "wide" / f"part{number}.py").write_text(f"x = {'1' * 4000}\n" * 25)
    payload = Payload(source="import wide", filename="", first_line=1, names=b"", sys_path=(str(tmp_path),))
    read = sum(len(text) for text in submission.local_modules(payload))
    assert read < submission.MAX_TEXT + 110_000


def test_two_libraries_of_which_each_needs_its_own_engine_are_named() -> None:
    pytest.importorskip("tensorflow")
    source = "import horovod.torch\nimport tensorflow as tf\ntf.distribute.ParameterServerStrategy"
    payload = Payload(source=source, filename="", first_line=1, names=b"")
    with pytest.raises(BadRequest, match=r"'horovod'.*'tensorflow_ps'.*--gpus 1") as refused:
        choose_engine(payload, CellOptions(max_slots=2))
    assert "--engine" not in str(refused.value)
