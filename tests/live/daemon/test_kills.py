"""What was acknowledged survives SIGKILL at any moment. `JUPYTER_ELASTIC_TEST_EVERYTHING` kills 200 times."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from pathlib import Path

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.journal import Journal
from jupyter_elastic.scheduler.restore import restore, save_snapshot
from jupyter_elastic.types import Event, JobSubmitted
from tests.support.invariants import check

KILLS = 200 if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else 5
WINDOW = 32


class Submitter(threading.Thread):
    """Submits without pause, and remembers what was acknowledged."""

    def __init__(self, spec, name: str) -> None:
        super().__init__(daemon=True)
        self.spec = spec
        self.prefix = name
        self.acknowledged: dict[str, int] = {}
        self.done = threading.Event()
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._submit())
        except BaseException as problem:
            self.problem = problem

    async def _submit(self) -> None:
        async with AsyncClient(timeout_s=120) as client:
            numbers = iter(range(10**9))

            async def one() -> None:
                while not self.done.is_set():
                    key = f"{self.prefix}-{next(numbers)}"
                    self.acknowledged[key] = await client.submit(self.spec, key)
                    await asyncio.sleep(0.002)

            await asyncio.gather(*(one() for _ in range(WINDOW)))


def wait_for_more(submitters: list[Submitter], more: int) -> None:
    """Until `more` further submits are acknowledged: the daemon works again."""
    target = sum(len(one.acknowledged) for one in submitters) + more
    limit = time.monotonic() + 60
    while sum(len(one.acknowledged) for one in submitters) < target:
        for one in submitters:
            assert one.problem is None, one.problem
        assert time.monotonic() < limit, "no submit is acknowledged any more"
        time.sleep(0.002)


def test_acknowledged_submits_survive_sigkill(pool, spec) -> None:
    chance = random.Random(7)
    pool.start()
    submitters = [Submitter(spec, name) for name in "ab"]
    for one in submitters:
        one.start()
    for _ in range(KILLS):
        wait_for_more(submitters, 40)
        time.sleep(chance.random() * 0.05)
        pool.kill()
        pool.start()
    wait_for_more(submitters, 40)
    for one in submitters:
        one.done.set()
    for one in submitters:
        one.join(60)
        assert one.problem is None
    acknowledged = {key: job for one in submitters for key, job in one.acknowledged.items()}
    assert len(set(acknowledged.values())) == len(acknowledged), "a number was handed out twice"

    client = pool.client()
    events: list[Event] = []
    head = client.ask(wire.ListJobs(limit=1)).seq
    for event in client.events(0):
        events.append(event)
        if event.seq >= head:
            break
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    made = {event.cause: event.data.job for event in events if isinstance(event.data, JobSubmitted)}
    assert sum(isinstance(event.data, JobSubmitted) for event in events) == len(made), "a submit happened twice"
    assert {key: made.get(key) for key in acknowledged} == acknowledged, "an acknowledged submit was lost"
    live = {info.job: info for info in client.jobs(all=True, limit=3000)}
    assert pool.stop() == 0

    replayed_is_live(pool.folder, live)


def replayed_is_live(folder: Path, live: dict) -> None:
    """The journal read by itself gives what the daemon showed; through a snapshot too."""
    journal = Journal(folder / "journal.sqlite")
    try:
        core, _ = restore(journal)
        check(core.state)
        shown = {info.job: info for info in core.jobs(all=True, limit=10**6)}
        assert {job: shown[job] for job in live} == live
        assert save_snapshot(journal, core)
        again, read = restore(journal)
        assert read == 0, "the snapshot was not used"
        assert again.state == core.state
    finally:
        journal.close()
