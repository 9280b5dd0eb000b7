"""What was acknowledged survives SIGKILL at any moment: 20 users with 50 jobs each, whose agents report all the while.

The agents are played here, a task for each attempt, so that a thousand jobs need no thousand processes; their words go
over real sockets to the real daemon. 10 kills by default, 1000 with `JUPYTER_ELASTIC_TEST_EVERYTHING`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import socket
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.scheduler.journal.restore import restore, save_snapshot
from jupyter_elastic.types import (
    AgentOrigin,
    AnyEffect,
    ExitReported,
    JobEnded,
    JobProgressed,
    JobSpec,
    JobStarted,
    JobSubmitted,
    Launch,
    Progress,
    ProgressReported,
    ReleaseReported,
    Report,
    Rescale,
    RunningReported,
    Stop,
)
from jupyter_elastic.types.errors import ProtocolError
from tests.live.daemon.test_limits import Users
from tests.support.invariants import check, no_slot_is_leased_twice

KILLS = 1000 if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else 10
USERS = tuple(f"user{number:02}" for number in range(20))
JOBS = 50
"""Of each user, at any time."""
STEPS = 5
PATIENCE_S = 300.0


class User:
    """Keeps `JOBS` jobs in the pool and plays their agent; remembers all that was acknowledged."""

    def __init__(self, name: str, endpoint: str, spec: JobSpec) -> None:
        self.name, self.endpoint, self.spec = name, endpoint, spec
        self.submitted: dict[str, int] = {}
        self.steps: dict[tuple[int, int], int] = {}
        """The last one of each attempt that was acknowledged."""
        self.completed: set[int] = set()
        self.acknowledged = 0
        self._orders: dict[tuple[int, int], Launch | Rescale] = {}
        """The newest of each attempt that lives."""
        self._over: set[tuple[int, int]] = set()
        self._room = asyncio.Semaphore(JOBS)

    async def run(self) -> None:
        agent = AsyncClient(self.endpoint, timeout_s=PATIENCE_S, role="agent")
        agent.hello = replace(agent.hello, place=AgentOrigin(place=f"the place of {self.name}"))
        async with (
            AsyncClient(self.endpoint, timeout_s=PATIENCE_S) as client,
            agent,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._submit(client))
            async for order in agent.orders():
                self._take(agent, order, tasks)

    async def _submit(self, client: AsyncClient) -> None:
        number = 0
        while True:
            await self._room.acquire()
            key = f"{self.name}-{number}"
            self.submitted[key] = await client.submit(self.spec, key)
            self.acknowledged += 1
            number += 1

    def _take(self, agent: AsyncClient, order: AnyEffect, tasks: asyncio.TaskGroup) -> None:
        attempt = order.job, order.attempt
        if attempt in self._over:
            return
        if isinstance(order, Stop):
            if self._orders.pop(attempt, None) is not None:
                self._over.add(attempt)
                outcome = "preempted" if order.how == "preempt" else "cancelled"
                tasks.create_task(self._say(agent, ExitReported, attempt, outcome=outcome))
        elif attempt not in self._orders:
            self._orders[attempt] = order
            tasks.create_task(self._work(agent, attempt))
        elif order.generation > self._orders[attempt].generation:
            before, self._orders[attempt] = self._orders[attempt], order
            gone = tuple(slot for slot in before.slots if slot not in order.slots)
            tasks.create_task(self._regroup(agent, attempt, order, gone))

    async def _regroup(
        self, agent: AsyncClient, attempt: tuple[int, int], order: Launch | Rescale, gone: tuple[str, ...]
    ) -> None:
        if gone:
            await self._say(agent, ReleaseReported, attempt, slots=gone, generation=order.generation)
        await self._say(agent, RunningReported, attempt, generation=order.generation, slots=order.slots, elastic=True)

    async def _work(self, agent: AsyncClient, attempt: tuple[int, int]) -> None:
        await self._regroup(agent, attempt, self._orders[attempt], ())
        for step in range(1, STEPS + 1):
            await asyncio.sleep(0.05)
            if attempt not in self._orders:
                return
            await self._say(agent, ProgressReported, attempt, progress=Progress(step=step))
            self.steps[attempt] = step
        if self._orders.pop(attempt, None) is None:
            return
        self._over.add(attempt)
        await self._say(agent, ExitReported, attempt, outcome="completed")
        self.completed.add(attempt[0])
        self._room.release()

    async def _say(self, agent: AsyncClient, kind: type[Report], attempt: tuple[int, int], **said: object) -> None:
        report = kind(at=0.0, by="", id="", job=attempt[0], attempt=attempt[1], **said)
        while True:
            try:
                await agent.ask(wire.ReportArrived(report=report))
            except ProtocolError:  # the daemon takes this agent for gone: as the real one does
                agent.introduce()
                await asyncio.sleep(0.2)
            else:
                self.acknowledged += 1
                return


class Crowd(threading.Thread):
    """All users, in a thread with a loop."""

    def __init__(self, users: list[User]) -> None:
        super().__init__(daemon=True)
        self.users = users
        self.problem: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._all: asyncio.Task[None] | None = None

    def run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            try:
                self._loop.run_until_complete(self._run())
            except Exception as problem:
                self.problem = problem
            finally:
                self._loop.close()

    async def _run(self) -> None:
        self._all = asyncio.current_task()
        async with asyncio.TaskGroup() as tasks:
            for user in self.users:
                tasks.create_task(user.run())

    def wait_for_more(self, more: int) -> None:
        """Until so many further asks are acknowledged: the daemon works again."""
        target = self.acknowledged + more
        limit = time.monotonic() + PATIENCE_S
        while self.acknowledged < target:
            assert self.problem is None, self.problem
            assert time.monotonic() < limit, "nothing is acknowledged any more"
            time.sleep(0.002)

    @property
    def acknowledged(self) -> int:
        return sum(user.acknowledged for user in self.users)

    def end(self) -> None:
        """What is in the air is not waited for: whether it is in the journal is open, as after any crash."""
        if self._all is not None:
            self._loop.call_soon_threadsafe(self._all.cancel)
        self.join(60)
        assert self.problem is None, self.problem


@pytest.mark.timeout(7200)
def test_what_was_acknowledged_survives_sigkill(pool, spec, tmp_path) -> None:
    chance = random.Random(7)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    keys = Users(pool, tmp_path, *USERS)
    arguments = (
        "--tcp", f"tcp://127.0.0.1:{port}", "--keys", str(keys.table), "--slots", "16", "--lease", "0",
        "--max-asks", "100000",
    )  # fmt: skip
    pool.start(*arguments, "--policy", "fair")
    keys.remote = keys.found()
    crowd = Crowd([User(name, keys.endpoint(name), replace(spec, max_slots=3)) for name in USERS])
    crowd.start()
    while min(len(user.submitted) for user in crowd.users) < JOBS:
        crowd.wait_for_more(1)
    for _ in range(KILLS):
        crowd.wait_for_more(20)
        time.sleep(chance.random() * 0.05)
        pool.kill()
        pool.start(*arguments)
    crowd.wait_for_more(20)
    crowd.end()

    client = pool.client()
    listed = client.ask(wire.ListJobs(all=True, limit=3000))
    live = {info.job: info for info in listed.jobs}
    assert len(live) >= len(USERS) * JOBS
    assert pool.stop() == 0
    nothing_is_lost_or_doubled(pool.folder, crowd.users)
    replayed_is_live(pool.folder, live, listed.seq)


def nothing_is_lost_or_doubled(folder: Path, users: list[User]) -> None:
    """The journal has all that was acknowledged, in order and once."""
    journal = Journal(folder / "journal.sqlite")
    try:
        events = list(journal.replay())
    finally:
        journal.close()
    made = {event.cause: event.data.job for event in events if isinstance(event.data, JobSubmitted)}
    assert sum(isinstance(event.data, JobSubmitted) for event in events) == len(made), "a submit happened twice"
    assert len(set(made.values())) == len(made), "a number was handed out twice"
    started = [(event.data.job, event.data.attempt) for event in events if isinstance(event.data, JobStarted)]
    assert len(set(started)) == len(started), "an attempt was started twice"
    ended = [event.data.job for event in events if isinstance(event.data, JobEnded)]
    assert len(set(ended)) == len(ended), "a job ended twice"
    steps: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in events:
        data = event.data
        if isinstance(data, JobProgressed) and data.progress.step not in steps[data.job, data.attempt]:
            steps[data.job, data.attempt].append(data.progress.step)
    for user in users:
        assert {key: made.get(key) for key in user.submitted} == user.submitted, "an acknowledged submit was lost"
        assert user.completed <= set(ended), "an acknowledged end was lost"
        for attempt, last in user.steps.items():
            assert steps[attempt][:last] == list(range(1, last + 1)), f"a step of {attempt} was missed"
    no_slot_is_leased_twice(events)
    sys.stdout.write(f"{len(events)} events, {len(made)} jobs, {len(started)} attempts, {len(ended)} ends\n")


def replayed_is_live(folder: Path, live: dict, seq: int) -> None:
    """The journal up to `seq` gives what the daemon showed then; all of it, through a snapshot too, one state."""
    journal = Journal(folder / "journal.sqlite")
    try:
        core = Core()
        for event in itertools.takewhile(lambda event: event.seq <= seq, journal.replay()):
            core.fold(event)
        shown = {info.job: info for info in core.jobs(all=True, limit=10**6)}
        # Whose id the files have is said to an administrator with the answer.
        assert {job: replace(shown[job], uid=live[job].uid) for job in live} == live
        core, _ = restore(journal)
        check(core.state)
        assert save_snapshot(journal, core)
        again, read = restore(journal)
        assert read == 0, "the snapshot was not used"
        assert again.state == core.state
    finally:
        journal.close()
