"""Hosts by Slurm: Debian's slurmctld here, a slurmd on each of two nodes made of namespaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.engine.test_ssh import EVERYTHING
from tests.support import machines, slurm

pytest.importorskip("torch")
WORDS = {
    "in no allocation": "($SLURM_JOB_ID is not set): make one, as by `salloc --no-shell",
    "none known": "allocation 4711 is none that Slurm knows",
    "no number": "'x' is no number of an allocation",
    "no node of it": "(h9 is no node of the allocation 1: jupyter elastic host add slurm:1)",
    "no Slurm": "there is no squeue here: run this where Slurm's commands are",
    "no srun": "host h1: srun can't be started: No such file or directory",
    "added": "h1: 1 slots, 0 GPUs, Python 3.",
    "list": "slurm://1/h2",
    "drained": "a new fan",
    "node of one that has ended": "(the allocation 1 has ended: jupyter elastic host remove slurm:1)",
    "ended": "allocation 1 is cancelled",
    "removed": "h1, h2: out of the pool",
}


@pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not())
@pytest.mark.parametrize("engine", ["torch"])
def test_job_over_an_allocation_outlives_a_nodes_processes_and_the_allocation(engine: str) -> None:
    story, words = Path(__file__).with_name("slurm_scenario.py"), ["everything"] if EVERYTHING else []
    found = json.loads(machines.run(story, engine, *words, timeout_s=400))
    print(found["times"])  # noqa: T201
    for case, text in WORDS.items():
        assert text in " ".join(found["said"][case].split()), (case, found["said"][case])
    assert " ends " in found["said"]["list"]
