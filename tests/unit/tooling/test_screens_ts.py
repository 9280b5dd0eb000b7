"""The front end's types are the twins of the Python view models: same names, same fields."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

import jupyter_elastic
from jupyter_elastic.client import job_screen
from jupyter_elastic.jobfiles import usage
from jupyter_elastic.views import earlier_runs, pool_screen, timeline_page, timeline_screen

MODULES = [pool_screen, timeline_screen, job_screen, usage, earlier_runs]
SOURCE = Path(pool_screen.__file__).parents[1] / "widgets" / "frontend" / "src" / "screens.ts"


def interfaces() -> dict[str, set[str]]:
    found = re.findall(r"export interface (\w+) \{(.*?)\n\}", SOURCE.read_text(), flags=re.DOTALL)
    return {name: set(re.findall(r"^\s*(\w+)\??:", body, flags=re.MULTILINE)) for name, body in found}


def structs(module: ModuleType) -> dict[str, set[str]]:
    kinds = {
        name: kind
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    }
    return {
        name: set(kind.__struct_encode_fields__)
        for name, kind in kinds.items()
        if issubclass(kind, msgspec.Struct) and not name.startswith("_")
    }


@pytest.mark.parametrize("module", MODULES, ids=["pool", "timeline", "job", "use", "earlier"])
def test_every_screen_has_its_twin(module: ModuleType) -> None:
    twins = interfaces()
    python = structs(module)
    assert python, "no structs found: the test looks at the wrong module"
    assert {name: twins.get(name) for name in python} == python


def test_no_interface_is_left_over() -> None:
    assert set(interfaces()) == {name for module in MODULES for name in structs(module)}


def test_the_page_knows_its_version() -> None:
    (version,) = re.findall(r"VERSION = '([^']+)'", (SOURCE.parent / "version.ts").read_text())
    assert version == jupyter_elastic.__version__


def test_a_job_has_the_same_colour_in_a_page_and_in_a_saved_file() -> None:
    (listed,) = re.findall(r"PALETTE = \[(.*?)\]", (SOURCE.parent / "timeline.ts").read_text())
    assert tuple(re.findall(r"'(#\w+)'", listed)) == timeline_page.PALETTE
