"""A notebook's cell over hosts of Slurm's: Debian's slurmctld here, a slurmd on each of two nodes of namespaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.engine.bench import needs
from tests.support import machines, slurm
from tests.support.marks import everything

pytest.importorskip("torch")


@everything
@pytest.mark.timeout(1000)
@pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not())
@pytest.mark.parametrize("engine", ["torch", pytest.param("horovod", marks=needs("torch"))])
def test_a_cell_grows_over_two_allocations_and_loses_a_nodes_processes_and_an_allocation(engine: str) -> None:
    said = machines.run(Path(__file__).with_name("slurm_scenario.py"), engine, timeout_s=900)
    print(engine, json.loads(said.splitlines()[-1]))  # noqa: T201
