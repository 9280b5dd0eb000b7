"""Which warm parents are too many."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from jupyter_elastic.forkserver import parents
from jupyter_elastic.forkserver.parents import Parent, surplus
from jupyter_elastic.platform import processes


def some(*memories: int) -> list[Parent]:
    """Parents of so many bytes, the first one used last."""
    return [Parent((pid, 0.0), size, 1000.0 - pid, Path(f"{pid}")) for pid, size in enumerate(memories)]


@pytest.mark.parametrize(
    ("memories", "count", "memory", "stay"),
    [
        ((), 2, 100, 0),
        ((10, 10), 2, 100, 2),
        ((10, 10, 10, 10), 2, 100, 2),
        ((40, 40, 40), 8, 100, 2),
        ((40, 70, 1), 8, 100, 1),  # a small one that is older does not stay in its place
        ((500, 1), 8, 100, 1),  # the last one stays
        ((0, 0, 0), 8, 0, 3),  # not known yet
    ],
)
def test_the_least_recently_used_go(memories: tuple[int, ...], count: int, memory: int, stay: int) -> None:
    given = some(*memories)
    assert surplus(given[::-1], count, memory) == given[stay:][::-1]


def test_only_those_that_live_are_found(tmp_path: Path) -> None:
    pid, start_time = processes.this_process()
    (tmp_path / "workers-a.lock").write_text(json.dumps([pid, start_time, 7]))
    (tmp_path / "workers-b.lock").write_text(json.dumps([pid, start_time - 100]))
    (tmp_path / "workers-c.lock").write_text("")
    os.utime(tmp_path / "workers-a.lock", (50, 50))
    assert parents.found(tmp_path) == [Parent((pid, start_time), 7, 50.0, tmp_path / "workers-a.sock")]


@pytest.mark.parametrize(
    ("given", "wanted", "most"), [("0", False, 8), ("3", True, 3), ("", True, 8), ("yes", True, 8)]
)
def test_the_user_says_how_many(monkeypatch: pytest.MonkeyPatch, given: str, wanted: bool, most: int) -> None:
    monkeypatch.setenv(parents.WARM_VARIABLE, given)
    assert (parents.wanted(), parents.most()) == (wanted, most)
