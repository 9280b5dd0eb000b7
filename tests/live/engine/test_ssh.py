"""Other hosts by SSH: a real sshd on each of two machines made of namespaces."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.live.engine.bench import needs
from tests.support import machines

pytest.importorskip("torch")
EVERYTHING = os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING")
ENGINES = ["torch", *([pytest.param("horovod", marks=needs("torch"))] if EVERYTHING else [])]
WORDS = {
    "works": "",
    "chatty shell": "",
    "no Python": "no host agent answers on host h1: bash: line 1: /opt/none/bin/python: No such file or directory",
    "another version": "host h1 has jupyter-elastic 0.0.7, and this one 0.1.0: install the same version on both",
    "wrong user": "no host agent answers on host h1: nobody@10.91.7.11: Permission denied (publickey",
    "changed key": "Host key for 10.91.7.12 has changed and you have requested strict checking.",
    "unknown key": "No ED25519 host key is known for 10.91.7.12 and you have requested strict checking.",
}


@pytest.mark.skipif(bool(machines.why_not()), reason=machines.why_not())
@pytest.mark.parametrize("engine", ENGINES)
def test_job_over_ssh_outlives_its_worker_the_way_between_hosts_and_the_cable(engine: str) -> None:
    story, words = Path(__file__).with_name("ssh_scenario.py"), ["everything"] if EVERYTHING else []
    found = json.loads(machines.run(story, engine, *words, timeout_s=400))
    print(found["times"])  # noqa: T201
    for case, said in WORDS.items():
        assert (said in found["said"][case]) if said else not found["said"][case], (case, found["said"][case])
