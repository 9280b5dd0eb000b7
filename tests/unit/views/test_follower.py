"""What the follower does by the clock: jobs that nobody looks at are forgotten, waits and shadows renewed at a pace."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.forecast.outlook import Outlook
from jupyter_elastic.scheduler.forecast.whatif import TOO_SLOW
from jupyter_elastic.types import JobInfo, JobSpec
from jupyter_elastic.views import forecasts
from jupyter_elastic.views.followed_job import FollowedJob
from jupyter_elastic.views.follower import KEEP_S, RETRY_S, PoolFollower
from jupyter_elastic.views.forecasts import ASKED_IDLE_S, ASKED_S, EVERY_S, Shadows, Waits
from jupyter_elastic.views.job_page import page_now
from tests.support.virtual_time import run
from tests.unit.scheduler.policies.pool import job, view

CROWDED = view(2, job(1, 1, 2, on=2), job(2))


class Clock:
    """Seconds that go on when the test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def ask(question: wire.AnyAsk) -> wire.AnyAnswer:
    """The answers of a pool with one job that runs and one that waits."""
    if isinstance(question, wire.ListJobs):
        return wire.Jobs(jobs=(), seq=1)
    return wire.PoolView(view=CROWDED, policy="fifo")


def info(number: int, folder: Path) -> JobInfo:
    spec = JobSpec(name="n", folder=str(folder), python="/p", min_slots=1, max_slots=1)
    return JobInfo(job=number, owner="ann", spec=spec, phase="running", submitted_at=0.0)


def test_a_job_that_nobody_looks_at_is_followed_no_longer(tmp_path: Path) -> None:
    async def play() -> None:
        follower = PoolFollower(f"ipc://{tmp_path}/nobody", clock=asyncio.get_running_loop().time)
        running = asyncio.create_task(follower.run())
        await asyncio.sleep(0)
        for number in (1, 2, 3):
            follower.follow(info(number, tmp_path), "cpu")
        forgotten = follower.jobs[3].task
        assert forgotten is not None
        await asyncio.sleep(KEEP_S - 2 * RETRY_S)
        await follower.job(1)  # as a page that asks for it
        follower.jobs[2].read_files()  # as a view that draws it
        assert set(follower.jobs) == {1, 2, 3}
        await asyncio.sleep(5 * RETRY_S)
        assert (set(follower.jobs), forgotten.cancelled()) == ({1, 2}, True)
        running.cancel()

    run(play())


def test_waits_are_predicted_again_at_their_pace() -> None:
    async def play() -> None:
        clock = Clock()
        waits = Waits(clock)
        assert await waits.renew(ask)
        assert set(waits.ranges) == {2}
        clock.now += EVERY_S - 0.1
        assert not await waits.renew(ask)
        clock.now += 0.2
        assert await waits.renew(ask)

    asyncio.run(play())


def test_waits_that_take_too_long_to_find_out_are_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        waits = Waits(Clock())
        monkeypatch.setattr(forecasts, "BUDGET_S", 0.0)
        assert await waits.renew(ask, ends=True)
        assert (waits.ranges, waits.outlook) == ({}, Outlook(note=TOO_SLOW))
        (found,) = await forecasts.forecast(answers, ["fifo"], {})
        assert found.note == TOO_SLOW
        monkeypatch.undo()
        (found,) = await forecasts.forecast(answers, ["fifo"], {})
        assert found.note == ""

    async def answers(question: wire.AnyAsk) -> wire.AnyAnswer:
        return wire.Hosts(slots=()) if isinstance(question, wire.ListHosts) else await ask(question)

    asyncio.run(play())


def test_shadows_are_asked_after_an_event_and_now_and_then_without() -> None:
    clock = Clock()
    shadows = Shadows(clock)
    shadows.begin("fifo")
    assert shadows.due(7)
    asyncio.run(shadows.renew(ask, 7))
    assert not shadows.due(8)
    clock.now += ASKED_S
    assert shadows.due(8)
    assert not shadows.due(7)
    clock.now += ASKED_IDLE_S
    assert shadows.due(7)


def test_of_somebody_elses_job_there_is_a_page_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").write_text("mine\n")
    (tmp_path / "error.json").write_text('{"message": "mine"}')
    other = msgspec.structs.replace(info(1, tmp_path), phase="failed")
    other = msgspec.structs.replace(other, spec=msgspec.structs.replace(other.spec, folder="", python=""))
    page = page_now(FollowedJob(other, "cpu"), "")
    assert (page.outputs, page.traceback, page.screen.owner) == ({}, "", "ann")
