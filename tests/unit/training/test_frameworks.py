"""Frameworks are found by entry points, without importing one that the cell has not imported."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from jupyter_elastic.platform import entry_points
from jupyter_elastic.training.context import context
from jupyter_elastic.training.frameworks import imported
from jupyter_elastic.training.frameworks.framework import Framework
from jupyter_elastic.training.frameworks.gradient_sum import GradientSum
from jupyter_elastic.training.group import SingleProcess
from jupyter_elastic.training.state import State, commits_of
from jupyter_elastic.types.errors import EngineError

CLASS = """
from jupyter_elastic.training.frameworks.framework import Framework
import {module}

class Part:
    framework = None
    def __init__(self, value): self.value = value
    def capture(self): return self.value.number
    def apply(self, captured): self.value.number = captured
    def reset(self): pass

class Toy(Framework):
    guarded = []
    def guard(self, module): self.guarded.append(module.__name__)
    def tracked(self, value): return Part(value) if isinstance(value, {module}.Thing) else None
"""


class Shelf:
    """A folder with packages that offer frameworks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def offer(
        self, package: str, module: str, text: str = CLASS, thing: str = "class Thing:\n    number = 0\n"
    ) -> None:
        """Install a package that joins `module`, which is installed too."""
        (self.folder / f"{module}.py").write_text(thing)
        (self.folder / f"{package}.py").write_text(text.format(module=module))
        info = self.folder / f"{package}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[jupyter_elastic.frameworks]\n{module} = {package}:Toy\n")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", sys.modules)
    before, hooks = set(sys.modules), list(sys.meta_path)
    yield Shelf(tmp_path)
    sys.meta_path[:] = hooks
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]
    imported._installed.cache_clear()


def test_another_packages_objects_are_parts_of_a_state_once_its_module_is_imported(shelf: Shelf) -> None:
    shelf.offer("elastic_one", "module_one")
    State(value=np.zeros(3))
    assert "elastic_one" not in sys.modules
    import module_one

    thing = module_one.Thing()
    state = State(thing=thing)
    thing.number = 5
    state.commit()
    thing.number = 7
    state.restore()
    assert state.thing is thing
    assert thing.number == 5
    assert commits_of(state).framework is None


def test_those_of_other_packages_are_asked_before_those_that_they_are_built_on(shelf: Shelf) -> None:
    torch = pytest.importorskip("torch")
    shelf.offer("elastic_two", "module_two", thing="import torch\nclass Thing(torch.nn.Linear):\n    number = 0\n")
    import module_two

    assert commits_of(State(model=module_two.Thing(1, 1))).framework is None
    assert commits_of(State(model=torch.nn.Linear(1, 1))).framework == "torch"
    assert list(imported._installed(tuple(sys.path))) == ["module_two", "keras", "tf_keras", "torch", "tensorflow"]


def test_two_packages_of_one_framework_are_an_error_where_it_is_used_only(shelf: Shelf) -> None:
    shelf.offer("elastic_three", "module_three")
    shelf.offer("elastic_rival", "module_three")
    State(value=np.zeros(3))
    import module_three

    with pytest.raises(EngineError, match=r"2 installed packages offer 'module_three': elastic_\w+:Toy \(of elastic_"):
        State(thing=module_three.Thing())


@pytest.mark.parametrize(("text", "why"), [("import nowhere_at_all", "ModuleNotFoundError"), ("Tory = 1", "Attrib")])
def test_a_class_that_can_not_be_loaded_is_named(shelf: Shelf, text: str, why: str) -> None:
    shelf.offer("elastic_four", "module_four", text)
    import module_four

    with pytest.raises(EngineError, match=rf"'module_four' \(elastic_four:Toy\) can't be loaded: {why}"):
        State(thing=module_four.Thing())


def test_a_package_that_is_installed_later_is_found(shelf: Shelf) -> None:
    before = set(entry_points.installed(imported.FRAMEWORKS))
    assert "module_five" not in before
    shelf.offer("elastic_five", "module_five")
    assert set(entry_points.installed(imported.FRAMEWORKS)) == before | {"module_five"}


def test_an_older_version_further_down_the_path_is_hidden(
    shelf: Shelf, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.offer("elastic_six", "module_six")
    newer = Shelf(tmp_path_factory.mktemp("newer"))
    newer.offer("elastic_six", "module_six", CLASS + "\nnewer = True\n")
    monkeypatch.syspath_prepend(str(newer.folder))
    text = (newer.folder / "elastic_six-1.dist-info" / "entry_points.txt").read_text().replace(":Toy", ":Framework")
    (newer.folder / "elastic_six-1.dist-info" / "entry_points.txt").write_text(text)
    (found,) = entry_points.installed(imported.FRAMEWORKS)["module_six"]
    assert found.value == "elastic_six:Framework"


def test_a_worker_is_guarded_when_the_cell_imports_the_framework_or_at_once(shelf: Shelf) -> None:
    shelf.offer("elastic_seven", "module_seven")
    shelf.offer("elastic_eight", "module_eight")
    import module_seven

    imported.guard()
    import elastic_seven

    assert elastic_seven.Toy.guarded == [module_seven.__name__]
    assert "elastic_eight" not in sys.modules
    import module_eight

    assert sys.modules["elastic_eight"].Toy.guarded == [module_eight.__name__]


def test_a_framework_that_needs_nothing_is_whole_as_it_is() -> None:
    plain = Framework()
    plain.guard(ModuleType("plain"))
    plain.complete([])
    plain.seed(1)
    plain.set_random_state(plain.random_state())
    assert plain.tracked(3) is plain.collate_for([1]) is None
    assert plain.indexable([1]) == [1]
    assert not plain.accumulates()


class Pair(SingleProcess):
    """A group in which the other member has the same gradients, and wants a change."""

    elastic = True

    def size(self):
        return 2

    def total(self, values):
        other = values.copy()
        other[-1] = 1.0
        return values + other


def test_gradients_keep_their_shapes_and_types_and_carry_the_wish_for_a_change(group, memory) -> None:
    context.group, context.state = Pair(), State()
    given = [np.ones((2, 3), np.float32), None, np.full(2, 3.0)]
    one, none, two = GradientSum().take(given)
    assert one.dtype == np.float32
    assert one.tolist() == np.ones((2, 3)).tolist()
    assert none is None
    assert two.tolist() == [3.0, 3.0]
    assert context.change
    assert context.trained


def test_a_step_outside_of_a_training_is_refused(memory) -> None:
    with pytest.raises(EngineError, match=r"under @training.run"):
        GradientSum().take([np.ones(1)])


def test_the_package_declares_its_own_frameworks_in_the_order_of_asking() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert set(project["entry-points"]["jupyter_elastic.frameworks"]) == set(imported._LAST)
