"""Faults of a machine that is reached by SSH: its disk, its other users, and what leads to it or waits there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.engine.bench import needs
from tests.support import machines
from tests.support.marks import everything

pytest.importorskip("torch")
WORDS = {
    "full disk": "host h2: its folder /tmp/jupyter-elastic-0/",
    "prints": "No space left on device",
    "ssh stopped": "was lost with host h2: silent for 5 s",
    "sshd stopped": "was lost with host h2: silent for 5 s",
    "control path cut": "was lost with host h2: silent for 5 s",
}


@everything
@pytest.mark.timeout(700)
@pytest.mark.skipif(bool(machines.why_not()), reason=machines.why_not())
@pytest.mark.parametrize("engine", ["torch", pytest.param("horovod", marks=needs("torch"))])
def test_a_job_goes_on_without_a_machine_whose_disk_is_full_or_which_is_silent_and_has_it_back(engine: str) -> None:
    found = json.loads(machines.run(Path(__file__).with_name("host_faults_scenario.py"), engine, timeout_s=600))
    print(found["times"])  # noqa: T201
    for case, said in WORDS.items():
        assert said in found["said"][case], (case, found["said"][case])
    assert "No space left on device" in found["said"]["full disk"]
    opened = {"environment", "kill", "list", *(["store"] if engine == "horovod" else [])}  # PyTorch's is no port
    assert set(found["said"]["second user"].split()) == opened
