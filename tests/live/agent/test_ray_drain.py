"""Nodes of a real Ray cluster, added to stay, that Ray drains: jobs leave them without loss before they go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import machines
from tests.support.marks import everything

pytest.importorskip("torch")


@everything
@pytest.mark.timeout(1000)
@pytest.mark.skipif(bool(machines.why_not(None)), reason=machines.why_not(None))
def test_a_job_leaves_nodes_that_ray_drains_with_and_without_a_deadline() -> None:
    pytest.importorskip("ray")
    found = json.loads(machines.run(Path(__file__).with_name("ray_drain_scenario.py"), timeout_s=900))
    print(found["times"])  # noqa: T201
    assert "cluster-10.91.7.12" in found["said"]["list"]
    assert "out" in found["said"]["list"]
