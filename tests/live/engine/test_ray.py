"""Other hosts by Ray: a real cluster of Ray over two machines made of namespaces."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.live.engine.bench import needs
from tests.support import machines

pytest.importorskip("torch")
EVERYTHING = os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING")
WORDS = {
    "no Python": "no host agent answers on host h1: /opt/none/bin/python: No such file or directory",
    "too much": "Ray does not give 2 CPUs of the node 10.91.7.11 away",
    "no node": "the Ray cluster at 10.91.7.10:6379 has no living node 10.91.7.17; its nodes are 10.91.7.1",
    "no cluster": "no Ray cluster answers at 10.91.7.11:6379: Connection refused",
}


@pytest.mark.skipif(not EVERYTHING, reason="several minutes on a busy machine: each node of Ray imports it four times")
@pytest.mark.skipif(bool(machines.why_not(None)), reason=machines.why_not(None))
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("engine", ["torch", pytest.param("horovod", marks=needs("torch"))])
def test_job_over_ray_grows_and_outlives_its_worker_ray_on_a_node_and_the_cable(engine: str) -> None:
    pytest.importorskip("ray")
    found = json.loads(machines.run(Path(__file__).with_name("ray_scenario.py"), engine, timeout_s=1400))
    print(found["times"])  # noqa: T201
    for case, said in WORDS.items():
        assert said in found["said"][case], (case, found["said"][case])
    assert not found["said"]["works"]
