"""Hosts that come from Slurm on demand: Debian's slurmctld here, a slurmd on each of two nodes of namespaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import machines, slurm
from tests.support.marks import everything

WORDS = {
    "no limit": "add --time-limit 1h --max-hosts 4",
    "no partition": "invalid partition specified: none",
    "too much": "allocation failure",
    "dry run": "nothing was set up",
    "added": "slurm:auto: 2 hosts at most, 2 slots each, for 1:00:00 at a time; given back after 15 s without work",
    "list before": "not there: Slurm is asked when the queue needs it",
    "list with them": "slurm://",
    "paused": "paused after failures: no host agent answers on host h",
    "removed": "slurm:auto: no more hosts are asked for",
}


@everything
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not())
def test_a_queue_brings_nodes_and_gives_them_back_and_failures_pause_it() -> None:
    found = json.loads(machines.run(Path(__file__).with_name("slurm_demand_scenario.py"), timeout_s=590))
    print(found["times"])  # noqa: T201
    for case, text in WORDS.items():
        assert text in " ".join(found["said"][case].split()), (case, found["said"][case])
