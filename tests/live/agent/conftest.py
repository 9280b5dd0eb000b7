"""A forkserver and attempts with the fake engine; every process is gone after the test."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jupyter_elastic.agent.attempt import Attempt
from jupyter_elastic.forkserver import drivers, parents
from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder, attempts
from jupyter_elastic.platform import paths, processes
from jupyter_elastic.protocol.wire import Done, LeasesRenewed, RenewLeases
from jupyter_elastic.types import ExitReported
from tests.support import fake_engine
from tests.support.somebody import lasting_pool, shared_pool

__all__ = ["lasting_pool", "shared_pool"]

LIMIT_S = 60


class World:
    """What an agent would hold, without a daemon: the reports are collected."""

    def __init__(self) -> None:
        self.drivers = drivers.DriverLauncher()
        self.seen = []
        self.changed = asyncio.Event()
        self.starts = 0
        self.tasks = []

    async def ask(self, ask):
        if isinstance(ask, RenewLeases):
            return LeasesRenewed(held=ask.attempts)
        self.seen.append(ask.report)
        self.changed.set()
        return Done()

    async def start_driver(self, order):
        self.starts += 1
        return await self.drivers.start(order)

    def attempt(self, launch, *, start=True):
        """An agent's hold on the attempt: the task of its life and the hold itself."""
        hold = Attempt(launch.job, launch.attempt, "me", self.ask, self.start_driver)
        folder = AttemptFolder.of(launch.spec.folder, launch.attempt)
        task = asyncio.create_task(hold.run(folder, launch if start else None))
        self.tasks.append(task)
        return hold, task

    async def until(self, condition):
        """Wait for reports that satisfy the condition."""
        async with asyncio.timeout(LIMIT_S):
            while not condition(self.seen):
                self.changed.clear()
                await self.changed.wait()

    async def until_seen(self, kind, count=1):
        await self.until(lambda seen: sum(isinstance(one, kind) for one in seen) >= count)
        return [one for one in self.seen if isinstance(one, kind)][-1]

    def ends(self):
        return [(one.outcome, one.attempt) for one in self.seen if isinstance(one, ExitReported)]


@pytest.fixture
def world(pool_dir, tmp_path, monkeypatch):
    """Run a coroutine function with a `World`."""
    monkeypatch.setenv("PYTHONPATH", fake_engine.install(tmp_path / "dist"))

    def run(story):
        async def live():
            here = World()
            try:
                async with asyncio.timeout(2 * LIMIT_S):
                    await story(here)
            finally:
                for task in here.tasks:
                    task.cancel()
                await asyncio.gather(*here.tasks, return_exceptions=True)
                for folder in attempts(paths.jobs_dir()):
                    if (record := folder.record()) is not None:
                        await processes.end([record.driver, *record.workers], grace_s=0.0)
                await processes.end([server.known for server in parents.found(paths.runtime_dir())], grace_s=0.0)

        asyncio.run(live())

    return run


@pytest.fixture
def job(pool_dir) -> Path:
    """Where a job would be."""
    return paths.jobs_dir() / "0123abcd"
