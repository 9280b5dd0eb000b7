"""The benchmarks are run by hand: at least each of them can be imported and has what the command calls."""

from __future__ import annotations

import importlib

import pytest

from benchmarks.__main__ import PARTS


@pytest.mark.parametrize("part", PARTS)
def test_every_part_can_be_run(part: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{part}").measure)
