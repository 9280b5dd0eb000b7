"""Hosts that come from Ray on demand: a real cluster whose own autoscaler starts nodes on machines of namespaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import machines
from tests.support.marks import everything

WORDS = {
    "no bundle": "add --max-hosts 4, and what Ray is asked for, for each: --bundle",
    "no number": "add --max-hosts 4",
    "no JSON": "JSON is malformed",
    "no slot": "Expected `int` >= 1",
    "time limit": "--time-limit is for `host add slurm:auto`",
    "no cluster": "no Ray cluster answers at 10.91.7.10:6380",
    "dry run": "nothing was set up",
    "added": "cluster: 2 hosts at most, 1 slots each; Ray has them back after 15 s without work",
    "list": "ray://10.91.7.10:6379/",
    "removed": "cluster: no more nodes are asked for",
}


@everything
@pytest.mark.timeout(1200)
@pytest.mark.skipif(bool(machines.why_not(None)), reason=machines.why_not(None))
def test_a_queue_brings_a_second_node_by_rays_autoscaler_and_gives_it_back() -> None:
    pytest.importorskip("ray")
    found = json.loads(machines.run(Path(__file__).with_name("ray_demand_scenario.py"), timeout_s=1100))
    print(found["times"])  # noqa: T201
    for case, text in WORDS.items():
        assert text in " ".join(found["said"][case].split()), (case, found["said"][case])
