"""What the switch of `tests.support.somebody` names is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.somebody import ALWAYS, MODULES, OWNERS_ALONE

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("module", MODULES)
def test_each_module_that_runs_as_somebody_too_is_there(module: str) -> None:
    path = TESTS / module.replace(".", "/")
    assert path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize("named", sorted({*ALWAYS, *OWNERS_ALONE}))
def test_each_exception_is_of_a_test_that_is_there(named: str) -> None:
    module, _, name = named.partition("::")
    assert module.startswith(MODULES), "only these run as somebody"
    assert f"def {name}" in (TESTS / module.replace(".", "/")).with_suffix(".py").read_text()
