"""Jobs over three machines that lose workers, hands, connections and cables at random: see `hosts_chaos_scenario`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.engine.bench import needs
from tests.support import machines
from tests.support.marks import everything

pytest.importorskip("torch")
EVENTS = 80
RUNS = [("torch", seed) for seed in range(1, 5)] + [pytest.param("horovod", 5, marks=needs("torch"))]


@everything
@pytest.mark.skipif(bool(machines.why_not()), reason=machines.why_not())
@pytest.mark.timeout(2000)
@pytest.mark.parametrize(("engine", "seed"), RUNS)
def test_random_events_over_hosts_use_no_slot_twice_and_lose_no_commit(engine: str, seed: int) -> None:
    story = Path(__file__).with_name("hosts_chaos_scenario.py")
    found = json.loads(machines.run(story, engine, str(seed), str(EVENTS), timeout_s=1900).splitlines()[-1])
    print(found)  # noqa: T201
    assert sum(found["happened"].values()) == EVENTS
