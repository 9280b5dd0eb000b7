"""How long silent jobs were is remembered by owner and name, from the events alone, and never without bounds."""

from __future__ import annotations

import msgspec
import pytest

from jupyter_elastic.scheduler.core import State
from jupyter_elastic.scheduler.core.lengths import KEPT, NAMES, length, noted
from jupyter_elastic.types import ExitReported, Progress, ProgressReported
from tests.support.harness import Harness, host


def run(pool: Harness, seconds: float, outcome: str = "completed", **spec) -> None:
    job = pool.running(2, **spec)
    pool.now += seconds
    pool.step(ExitReported, job=job, attempt=1, outcome=outcome)


def test_completed_silent_jobs_are_remembered_and_others_are_not() -> None:
    pool = Harness(host("a", 4))
    run(pool, 100.0, name="digits")
    run(pool, 300.0, name="digits")
    run(pool, 50.0, name="digits", by="bob")
    run(pool, 50.0, outcome="failed", name="digits")
    job = pool.running(1, name="talks")
    pool.step(ProgressReported, job=job, attempt=1, progress=Progress(samples=1.0, total_samples=2.0))
    pool.step(ExitReported, job=job, attempt=1, outcome="completed")
    lengths = pool.core.view(pool.now).lengths
    assert {owner: list(names) for owner, names in lengths.items()} == {"ann": ["digits"], "bob": ["digits"]}
    assert lengths["ann"]["digits"] == pytest.approx([100.0 * 2**0.9, 300.0 * 2**0.9], abs=10.0), "on one slot"
    state = pool.core.state
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State).lengths == state.lengths


def test_a_view_keeps_what_it_showed() -> None:
    first = noted({}, "ann", "a", 1.0)
    second = noted(first, "ann", "a", 2.0)
    assert (first, second) == ({"ann": {"a": (1.0,)}}, {"ann": {"a": (1.0, 2.0)}})


def test_the_last_lengths_and_names_are_kept() -> None:
    lengths = {}
    for number in range(2 * KEPT):
        lengths = noted(lengths, "ann", "a", float(number))
    assert lengths["ann"]["a"] == tuple(range(KEPT, 2 * KEPT))
    for number in range(NAMES):
        lengths = noted(lengths, "ann", f"b{number}", 1.0)
    assert len(lengths["ann"]) == NAMES
    assert "a" not in lengths["ann"]


def test_lengths_are_on_the_least_size() -> None:
    assert length(400.0, 100.0, 4) == 100.0
    assert length(400.0, 100.0, 2) == pytest.approx(100.0 * 2**0.9)
