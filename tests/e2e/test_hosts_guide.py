"""Who follows a section of the page about other hosts, and nothing else, has a job on several."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support import machines, slurm
from tests.support.marks import everything

WITHOUT = {"ssh": machines.why_not, "slurm": slurm.why_not}
"""What is missing here for a way; nothing but namespaces is needed for the others."""


@everything
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("way", ["exec", "kubectl", "ray", "slurm", "ssh"])
def test_cells_on_hosts_that_were_added_by_the_commands_of_the_page(way: str) -> None:
    pytest.importorskip("torch")
    if why := WITHOUT.get(way, lambda: machines.why_not(None))():
        pytest.skip(why)
    if way == "ray" and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    print(machines.run(Path(__file__).with_name("hosts_guide_scenario.py"), way, timeout_s=1400))  # noqa: T201
