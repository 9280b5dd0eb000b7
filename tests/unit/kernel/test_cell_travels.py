"""The kernel reads a cell's text to choose an engine; the driver gets that reading and does not read again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_elastic.engines.common.cell_text import read_cell
from jupyter_elastic.jobfiles.payload import Payload
from jupyter_elastic.kernel import submission
from jupyter_elastic.kernel.cell_options import CellOptions

LIBRARIES = {"horovod": ("horovod", "hvd")}
OWN = "import torch.distributed as dist\nimport os\nlocal_rank = int(os.environ['LOCAL_RANK'])\n"


def payload(source: str, **more: Any) -> Payload:
    return Payload(source=source, filename="<In[1]>", first_line=1, names=b"", **more)


@pytest.mark.parametrize(
    ("source", "engine"),
    [
        ("import horovod.torch as hvd\n@hvd.elastic.run\ndef train(state): pass", "horovod"),
        ("import horovod.torch as hvd\nhvd.init()", "horovod"),
        ("from jupyter_elastic import training\nimport torch\ntraining.run(print)", "torch"),
        ("import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()", "process"),
        ("print(1)", "process"),
    ],
)
def test_the_choice_has_the_reading_that_the_driver_made_for_the_same_engine(source: str, engine: str) -> None:
    choice: Any = submission.choose_engine(payload(source), CellOptions(engine=engine))
    assert choice.cell == read_cell(payload(source), LIBRARIES.get(engine, ()))


def test_the_reading_has_what_the_cells_own_modules_do(tmp_path: Path) -> None:
    (tmp_path / "ours_that_travel.py").write_text(OWN)
    cell = payload("import ours_that_travel", sys_path=(str(tmp_path),))
    found: Any = submission.choose_engine(cell, CellOptions(engine="process"))
    assert (found.cell.torch_distributed, found.cell.pins, found.cell.frameworks) == (True, True, ("torch",))
    assert not read_cell(cell).pins


def test_a_payload_keeps_the_reading_and_one_without_it_is_still_read() -> None:
    from jupyter_elastic.jobfiles.cell_hints import CellText

    sent = msgspec.msgpack.encode(payload("print(1)", cell=CellText(elastic=True, frameworks=("torch",))))
    assert msgspec.msgpack.decode(sent, type=Payload).cell == CellText(elastic=True, frameworks=("torch",))
    fields = msgspec.msgpack.decode(sent)
    del fields["cell"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Payload).cell is None


def test_a_job_s_folder_gets_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from jupyter_elastic.jobfiles.payload import read_payload

    asked: list[Any] = []
    client: Any = SimpleNamespace(welcome=None, submit=lambda spec: asked.append(spec) or 1)
    monkeypatch.setattr(submission.services, "check_agent", lambda: None)
    monkeypatch.setattr(submission.paths, "jobs_dir", lambda: tmp_path)
    cell = msgspec.structs.replace(payload("import torch.distributed", sys_path=tuple(sys.path)), names=b"names")
    options = CellOptions()
    choice: Any = submission.choose_engine(cell, options)
    package: Any = SimpleNamespace(payload=cell, folder_copy=b"")
    submission.submit(client, options, package, choice, "cell-1")
    assert read_payload(Path(asked[0].folder)).cell == choice.cell
    assert choice.cell.torch_distributed
