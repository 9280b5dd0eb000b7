"""Policies are switched at random while jobs come, run and end: nobody is lost, doubled or touched without need."""

from __future__ import annotations

import os
import random
from pathlib import Path

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.types import (
    ENDED,
    JobEnded,
    PolicyUsed,
    RescaleRequested,
    StopRequested,
)
from tests.support.pool import Pool

SWITCHES = 100 if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else 30
SHORT = "import time\ntime.sleep(0.3)\nprint('through')\n"


def test_random_switches_under_load(tmp_path: Path) -> None:
    chance = random.Random(7)
    with Pool(tmp_path / "pool", slots=3) as pool:
        installed = plugins.names(plugins.POLICIES)
        jobs, name = [], "fifo"
        for number in range(SWITCHES):
            least = chance.choice((1, 1, 2))
            if number % 3 == 0:
                jobs.append(pool.submit(SHORT, slots=(least, chance.randint(least, 3)), name=f"job {number}"))
            name = chance.choice([other for other in installed if other != name])
            pool.client.ask(wire.SwitchPolicy(name=name, reason=f"switch {number}"))
        for job in jobs:
            assert pool.ended(job).outcome == "completed"
        pool.until(lambda: all(info.phase in ENDED for info in pool.client.jobs()), "nobody is left")
        ends = [event.data.job for event in pool.events if isinstance(event.data, JobEnded)]
        assert sorted(ends) == sorted(jobs)
        assert sum(isinstance(event.data, PolicyUsed) and event.by != "daemon" for event in pool.events) == SWITCHES
        for job in jobs:
            assert set(pool.output(job).split()) == {"through"}
        pool.no_slot_is_leased_twice()


def test_a_switch_whose_plan_is_what_is_held_touches_nobody(tmp_path: Path) -> None:
    with Pool(tmp_path / "pool", slots=2) as pool:
        jobs = [pool.submit("import time\ntime.sleep(600)", slots=1) for _ in range(2)]
        for job in jobs:
            pool.running(job)
        for name in plugins.names(plugins.POLICIES):
            pool.client.ask(wire.SwitchPolicy(name=name))
        marker = pool.submit("print('last')", slots=1)  # planned under the last policy, so every plan before is done
        pool.until(lambda: any(getattr(e.data, "job", 0) == marker for e in pool.events), "the last submit is seen")
        touched = [
            e for e in pool.events if isinstance(e.data, StopRequested | RescaleRequested) and e.data.job in jobs
        ]
        assert touched == []
        for job in (marker, *jobs):
            pool.cancel(job)
            pool.ended(job)
