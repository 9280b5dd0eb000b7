"""An agent of another user that says that it lives, and ends nothing: its slots come free all the same."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobEnded, JobRequeued, JobStarted, SlotsReleased
from tests.support.other_user import OtherUser, needs_root, other_user

RENEWS = """
import asyncio, sys
from jupyter_elastic.client import AsyncClient
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import AgentOrigin, JobSpec

async def run():
    async with AsyncClient(sys.argv[1], role="agent") as agent:
        place = AgentOrigin(place="its own")
        await agent.ask(wire.Hello(version=wire.VERSION, role="agent", place=place))
        jobs = []
        for number, limit in enumerate((1.0, 300.0, 300.0)):
            about = {"name": "n", "folder": f"/tmp/none/{number}", "python": sys.executable, "max_time_s": limit}
            spec = JobSpec(min_slots=1, max_slots=1, **about)
            jobs.append((await agent.ask(wire.SubmitJob(spec=spec, key=f"k{number}"))).job)
        both = tuple((job, attempt) for job in jobs for attempt in (1, 2))  # job 3 is started again
        while True:
            await agent.ask(wire.RenewLeases(attempts=both))
            await asyncio.sleep(0.2)

asyncio.run(run())
"""


@pytest.fixture
def other() -> Iterator[OtherUser]:
    with other_user() as user:
        yield user


@needs_root
def test_slots_of_an_agent_that_only_renews_come_free(pool, other, open_folder) -> None:
    endpoint = f"ipc://{open_folder}/s"
    there = {"JUPYTER_ELASTIC_ENDPOINT": endpoint}
    client = pool.start("--socket", f"{open_folder}/s", "--lease", "2").client()
    agent = other.start("-c", RENEWS, endpoint, stdout=subprocess.DEVNULL)
    try:
        started: set[int] = set()
        ends = {}
        for event in client.events(0):
            match event.data:
                case JobStarted(job=job, attempt=1):
                    started.add(job)
                    if job == 2:
                        client.ask(wire.CancelJob(job=2))
                    if job == 3:
                        code, _, errors = other.elastic("release", "3", "--force", more=there)
                        assert code != 0
                        assert "only an administrator" in errors
                        client.ask(wire.ReleaseJob(job=3, reason="a class waits", force=True))
                case JobEnded(job=job) | JobRequeued(job=job, attempt=1):
                    ends[job] = event
                    if ends.keys() == {1, 2, 3}:
                        break
        assert agent.poll() is None
        assert started == {1, 2, 3}
        assert (ends[1].data.outcome, ends[2].data.outcome, ends[3].data.cause) == ("failed", "cancelled", "lost")
        for job in (1, 2):
            assert "had not ended" in ends[job].data.reason
        assert ends[3].data.reason == "released by root by force: a class waits; something of it may still run"
        free = [event.data for event in client.events(0, follow=False) if isinstance(event.data, SlotsReleased)]
        assert {data.job for data in free} == {1, 2, 3}
        [told] = [one for one in client.ask(wire.ReadAudit(job=3)).rows if "by force" in one.reason]
        assert (told.by, told.user) == ("root", client.jobs(job=3)[0].owner)
    finally:
        agent.kill()
        agent.wait()
