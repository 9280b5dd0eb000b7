"""The benchmarks are run by hand: one of them is measured here for real, and the command can call the others."""

from __future__ import annotations

import importlib
import inspect
import json

import pytest

from benchmarks import submits
from benchmarks.__main__ import PARTS, RESULTS, show
from benchmarks.harness import interleave, row


def test_a_figure_is_the_median_of_its_rounds_beside_its_peer_s() -> None:
    ours, peers = interleave(3, iter([1.0, 5.0, 2.0]).__next__, iter([4.0, 8.0, 3.0]).__next__)
    found = row("first line", "s", ours, peers, "torchrun")
    assert (found["ours"], found["ours_range"], found["peer"]) == (2.0, [1.0, 5.0], 4.0)
    assert (found["ratio"], found["rounds"]) == (0.5, 3)


@pytest.mark.slow
def test_submits_are_measured_beside_their_peer(capsys: pytest.CaptureFixture[str]) -> None:
    found = submits.measure(1)
    show(found)
    printed = capsys.readouterr().out
    published = {entry["name"] for entry in json.loads(RESULTS.read_text())}
    for entry in found:
        assert entry["ours"] > 0
        assert entry["peer"] > 0
        assert entry["name"] in published
        assert entry["name"] in printed


@pytest.mark.parametrize("part", PARTS)
def test_the_command_can_call_every_part(part: str) -> None:
    inspect.signature(importlib.import_module(f"benchmarks.{part}").measure).bind(5)
