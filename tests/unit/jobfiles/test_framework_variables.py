"""Variables that a cell sets before it imports what reads them."""

from __future__ import annotations

import ast
import sys

import pytest

from jupyter_elastic.jobfiles.framework_variables import set_before_loading
from jupyter_elastic.kernel import capture
from jupyter_elastic.worker import late_variables


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('import os\nos.environ["KERAS_BACKEND"] = "torch"\nimport keras', {"KERAS_BACKEND": "torch"}),
        ('from os import environ\nenviron["KERAS_BACKEND"] = "jax"\nimport keras', {"KERAS_BACKEND": "jax"}),
        ('os.environ.update({"OMP_NUM_THREADS": "2", "A": "b"}, TF_X="1")', {"OMP_NUM_THREADS": "2", "TF_X": "1"}),
        ('os.environ |= {"TF_USE_LEGACY_KERAS": "1"}', {"TF_USE_LEGACY_KERAS": "1"}),
        ('os.environ["KERAS_BACKEND"] = "jax"\nos.environ["KERAS_BACKEND"] = "torch"', {"KERAS_BACKEND": "torch"}),
        ('os.putenv("TORCH_LOGS", "+dynamo")\nimport torch', {"TORCH_LOGS": "+dynamo"}),
        ('import torch\nos.environ["KERAS_BACKEND"] = "torch"\nimport keras', {"KERAS_BACKEND": "torch"}),
        # what has no effect, what is not certain, and what is read later
        ('import keras\nos.environ["KERAS_BACKEND"] = "torch"', {}),
        ('from horovod import keras as hvd\nos.environ["TF_XLA_FLAGS"] = "x"', {}),
        ('from tensorflow import keras\nos.environ["KERAS_BACKEND"] = "torch"', {}),
        ('import transformers\nos.environ["OMP_NUM_THREADS"] = "4"', {}),
        ('if rank:\n    os.environ["KERAS_BACKEND"] = "torch"', {}),
        ('def f():\n    os.environ["KERAS_BACKEND"] = "torch"', {}),
        ('os.environ["OMP_NUM_THREADS"] = str(4)', {}),
        ('os.environ["KERAS_BACKEND"] = "a\\0b"', {}),
        ('os.environ["MASTER_PORT"] = "1"\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\nos.environ["PATH"] = ""', {}),
        ('other["KERAS_BACKEND"] = "torch"\nother.update({"KERAS_BACKEND": "torch"})', {}),
    ],
)
def test_what_a_cell_sets(source: str, found: dict[str, str]) -> None:
    assert {name: value for name, (value, _) in set_before_loading(ast.parse(source)).items()} == found


def pack(source: str, **how: object) -> capture.Package:
    return capture.package(source, {}, filename="<In[1]>", first_line=2, **how)


def test_it_travels_with_the_cell_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    package = pack('import os\nos.environ["KERAS_BACKEND"] = "torch"\nimport keras')
    assert package.payload.env["KERAS_BACKEND"] == "torch"
    assert "set before the workers load their frameworks, as in the cell: KERAS_BACKEND=torch" in package.notes
    default = pack('import os\nos.environ.setdefault("KERAS_BACKEND", "torch")\nimport keras')
    assert default.payload.env["KERAS_BACKEND"] == "tensorflow"
    monkeypatch.delenv("KERAS_BACKEND")
    assert pack("import os\nos.environ.setdefault('KERAS_BACKEND', 'torch')").payload.env["KERAS_BACKEND"] == "torch"
    asked = pack('import os\nos.environ["KERAS_BACKEND"] = "torch"', env={"KERAS_BACKEND": "jax"})
    assert asked.payload.env["KERAS_BACKEND"] == "jax"


@pytest.mark.parametrize(
    "line", ["%env KERAS_BACKEND=torch", "%set_env KERAS_BACKEND torch", "%env KERAS_BACKEND = torch"]
)
def test_ipythons_own_line_sets_it_too(line: str) -> None:
    package = pack(f"{line}\nimport os\nfound = os.environ['KERAS_BACKEND']")
    assert package.payload.env["KERAS_BACKEND"] == "torch"
    namespace: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "")
        exec(package.payload.source, namespace)
    assert namespace["found"] == "torch"


@pytest.mark.parametrize("line", ["%env HOME", "%env A={b}", "%env A=$b", "%env"])
def test_a_line_that_needs_the_notebook_is_refused(line: str) -> None:
    with pytest.raises(capture.PackagingError, match="--env"):
        pack(f"{line}\nx = 1")


def test_a_cell_that_chooses_its_gpus_is_told() -> None:
    (note,) = pack('import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "3"').notes
    assert "leased" in note


def test_a_variable_that_comes_too_late_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.putenv", lambda name, value: None)
    monkeypatch.setattr(late_variables, "_warned", set())
    monkeypatch.setitem(sys.modules, "numexpr", sys)
    labels = {"<In[1]>": "<In[1]>", "/tmp/ipykernel_1/2.py": "<In[2]>"}
    late_variables.watch(labels)
    late_variables.watch(labels)  # nothing is said twice

    def cell(source: str, filename: str = "<In[1]>") -> str:
        exec(compile(source, filename, "exec"), {})
        return capsys.readouterr().err

    with monkeypatch.context() as patch:
        patch.setenv("NUMEXPR_MAX_THREADS", "8")
        assert not cell("import os; os.environ['NUMEXPR_MAX_THREADS'] = '8'")  # as it is
        assert not cell("import os; os.environ['NUMEXPR_MAX_THREADS'] = '4'", "/site-packages/library.py")
        said = cell("import os; os.environ.update({'NUMEXPR_MAX_THREADS': str(2)})", "/tmp/ipykernel_1/2.py")
        assert "`--env NUMEXPR_MAX_THREADS=2`" in said
        assert said.count("\n") == 1
        assert not cell("import os; os.environ['NUMEXPR_MAX_THREADS'] = '3'")
        assert not cell("import os; os.environ['OF_NOBODY'] = '3'")
