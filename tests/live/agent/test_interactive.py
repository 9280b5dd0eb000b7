"""An interactive cell on a full pool: elastic batch work shrinks for it, and gets its slots back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from jupyter_elastic.protocol.wire import SwitchPolicy
from jupyter_elastic.types import JobStarted, RescaleRequested, StopRequested
from tests.live.agent.test_pool import ELASTIC
from tests.support.pool import Pool

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("policy", "options"), [("fifo", {"size": "max"}), ("fair", {}), ("balanced", {})])
def test_it_starts_when_the_batch_job_has_shrunk_and_the_batch_job_grows_again(
    shared_pool: Pool, tmp_path: Path, policy: str, options: dict[str, str], record_property
) -> None:
    pool, signals = shared_pool, tmp_path
    pool.owner.client.ask(SwitchPolicy(name=policy, options=options))
    batch = pool.submit(ELASTIC, slots=(1, 2), names={"folder": signals}, engine="torch")
    pool.until((signals / "began.1").exists, "the batch job trains on both slots")
    pool.wait(lambda: pool.info(batch).elastic, "it is known to be elastic")
    pool.wait(lambda: pool.info(batch).phase == "running", "it is at rest")
    began = time.monotonic()
    cell = pool.submit("print('here')", interactive=True)
    pool.printed(cell, "here")
    record_property("seconds", time.monotonic() - began)
    shrunk = pool.wait_fact(batch, RescaleRequested)
    assert shrunk.reason == f"makes room for interactive job {cell} of {pool.info(cell).owner}"
    assert pool.info(cell).spec.max_time_s == 600.0
    assert pool.ended(cell).outcome == "completed"
    grown = pool.wait_fact(batch, RescaleRequested, 2)
    assert len(grown.slots) == 2
    pool.running(batch, generation=grown.generation)
    (signals / "go").touch()
    assert pool.ended(batch).outcome == "completed"
    told = pool.events_of(batch)
    assert not any(isinstance(data, StopRequested) for data in told)
    assert sum(isinstance(data, JobStarted) for data in told) == 1, "it went on, and was not started anew"


def test_its_time_ends_it_and_says_so(shared_pool: Pool) -> None:
    cell = shared_pool.submit("import time\nwhile True: time.sleep(0.01)", interactive=True, max_time_s=0.5)
    ended = shared_pool.ended(cell)
    assert ended.outcome == "failed"
    assert ended.reason.startswith("it ran for 0.5 s, which is all that it had as an interactive job; run it without")
