"""What is read off a cell's text, and of a death."""

from __future__ import annotations

import signal

import pytest

from jupyter_elastic.engines.common.cell_text import read_cell
from jupyter_elastic.engines.common.deaths import describe
from jupyter_elastic.jobfiles.payload import Payload
from jupyter_elastic.kernel.capture import package


def cell(source: str, **names: object) -> Payload:
    return package(source, names, filename="<In[1]>").payload


@pytest.mark.parametrize(
    ("source", "elastic", "forms_groups", "frameworks"),
    [
        ("print('hello')", False, False, ()),
        ("import horovod.torch as hvd\nhvd.init()", False, True, ("torch",)),
        ("@hvd.elastic.run\ndef f(state): pass", True, True, ()),
        ("from jupyter_elastic import training\nimport keras", False, True, ("tensorflow",)),
        ("from jupyter_elastic.training import run\n@run\ndef f(state): pass", True, True, ()),
        ("import torch, tensorflow", False, False, ("tensorflow", "torch")),
        ("import lightning", False, False, ("torch",)),
        ("torchlight = 1  # no framework", False, False, ()),
    ],
)
def test_cell(source: str, *, elastic: bool, forms_groups: bool, frameworks: tuple[str, ...]) -> None:
    found = read_cell(cell(source), ("horovod", "hvd"))
    assert (found.elastic, found.forms_groups, found.frameworks) == (elastic, forms_groups, frameworks)


def test_captured_names_count() -> None:
    from jupyter_elastic import training

    found = read_cell(cell("training.run(1)", training=training))
    assert found.elastic
    assert found.forms_groups


@pytest.mark.parametrize(
    ("code", "oom", "words"),
    [
        (-signal.SIGKILL, False, ["rank 3", "SIGKILL", "probably out of memory"]),
        (-signal.SIGKILL, True, ["SIGKILL", "out-of-memory killer", "smaller batches"]),
        (-signal.SIGSEGV, False, ["SIGSEGV", "compiled code"]),
        (-signal.SIGTERM, False, ["SIGTERM"]),
        (-63, False, ["signal 63"]),
        (7, False, ["exit code 7"]),
        (None, False, ["nobody saw how"]),
    ],
)
def test_death(code: int | None, *, oom: bool, words: list[str]) -> None:
    text = describe(3, code, oom=oom)
    for word in words:
        assert word in text
