"""The agent's answers to orders that a healthy daemon seldom sends, and when it leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys

import pytest
from msgspec.structs import replace

from jupyter_elastic.agent import agent
from jupyter_elastic.client import AsyncClient
from jupyter_elastic.forkserver.parents import WARM_VARIABLE
from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder
from jupyter_elastic.platform import endpoints, paths, private_files, processes
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.protocol.wire import Done, Jobs, LeasesRenewed, ListJobs, RenewLeases, Welcome
from jupyter_elastic.types import ExitReported, JobInfo, JobSpec, Launch, Rescale, RunningReported, Stop
from jupyter_elastic.types.errors import DaemonUnreachable
from tests.support import fake_engine
from tests.support.fake_engine import Script, launch


@pytest.fixture(autouse=True)
def _no_warm_pool(monkeypatch):
    """It would outlive the test: nobody needs it here."""
    monkeypatch.setenv(WARM_VARIABLE, "0")


class Daemon:
    """The agent's client, with a daemon behind it that sends what the test says."""

    welcome = None
    refusal = ""

    def __init__(self):
        self.welcomed = asyncio.Event()
        self.welcomed.set()
        self.sent = asyncio.Queue()
        self.seen = []
        self.lost = ()
        """Attempts that hold no slots any more."""
        self.news = asyncio.Event()

    async def orders(self):
        while True:
            yield await self.sent.get()

    async def ask(self, ask, timeout_s=None):
        if hasattr(ask, "report"):
            self.seen.append(ask.report)
            self.news.set()
        if isinstance(ask, RenewLeases):
            return LeasesRenewed(held=tuple(one for one in ask.attempts if one not in self.lost))
        return Done()

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition([one for one in self.seen if isinstance(one, ExitReported | RunningReported)]):
                self.news.clear()
                await self.news.wait()


def with_agent(story, **options):
    async def live():
        daemon = Daemon()
        task = asyncio.create_task(agent.Agent(daemon, **options).run())
        try:
            async with asyncio.timeout(120):
                await story(daemon)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(live())


def stop(how, job=5):
    return Stop(job=job, attempt=1, owner="me", how=how, reason="r")


def test_a_stop_for_an_attempt_that_left_no_trace_ends_it_at_once(pool_dir):
    async def story(daemon):
        for job, how in enumerate(("cancel", "preempt", "time limit"), 5):
            daemon.sent.put_nowait(stop(how, job))
        daemon.sent.put_nowait(Rescale(job=8, attempt=1, owner="me", generation=2, slots=("h:0",)))
        await daemon.until(lambda seen: len(seen) == 4)
        outcomes = {one.job: one.outcome for one in daemon.seen}
        assert outcomes == {5: "cancelled", 6: "preempted", 7: "failed", 8: "lost"}

    with_agent(story)


def test_a_repeated_launch_of_an_attempt_that_is_over_repeats_its_end(pool_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", fake_engine.install(tmp_path / "dist"))
    order = launch(paths.jobs_dir() / "job", Script(outcome="completed"), python=sys.executable)

    async def first(daemon):
        daemon.sent.put_nowait(order)
        await daemon.until(lambda seen: any(isinstance(one, ExitReported) for one in seen))
        while AttemptFolder.of(order.spec.folder, 1).runtime.exists():  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.01)
        daemon.sent.put_nowait(order)
        await daemon.until(lambda seen: len([one for one in seen if isinstance(one, ExitReported)]) == 2)
        assert {one.outcome for one in daemon.seen if isinstance(one, ExitReported)} == {"completed"}

    async def next_agent(daemon):
        daemon.sent.put_nowait(stop("cancel", order.job))  # it has only the folder to know the attempt by
        await daemon.until(lambda seen: len(seen) == 1)
        assert daemon.seen[0].outcome == "completed"

    with_agent(first)
    with_agent(next_agent)
    assert len((paths.jobs_dir() / "job" / "calls").read_text().splitlines()) == 1


def test_an_attempt_that_was_ordered_and_never_started_is_started_by_the_next_agent(pool_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", fake_engine.install(tmp_path / "dist"))
    order = launch(paths.jobs_dir() / "job", Script(), python=sys.executable)
    folder = AttemptFolder.of(order.spec.folder, 1)
    folder.create(order)  # and then the agent died

    async def story(daemon):
        daemon.sent.put_nowait(order)
        await daemon.until(lambda seen: any(isinstance(one, RunningReported) for one in seen))
        daemon.sent.put_nowait(stop("cancel", order.job))
        await daemon.until(lambda seen: isinstance(seen[-1], ExitReported))
        assert daemon.seen[-1].outcome == "cancelled"
        await processes.gone(folder.record().driver)

    with_agent(story)


def test_a_launch_and_its_stop_at_once_end_it(pool_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", fake_engine.install(tmp_path / "dist"))
    order = launch(paths.jobs_dir() / "job", Script(), python=sys.executable)
    assert isinstance(order, Launch)

    async def story(daemon):
        daemon.sent.put_nowait(order)
        daemon.sent.put_nowait(stop("preempt", order.job))
        await daemon.until(lambda seen: seen and isinstance(seen[-1], ExitReported))
        assert daemon.seen[-1].outcome == "preempted"

    with_agent(story)


def test_what_holds_no_slots_any_more_is_ended(pool_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", fake_engine.install(tmp_path / "dist"))
    order = launch(paths.jobs_dir() / "job", Script(), python=sys.executable)

    async def story(daemon):
        daemon.sent.put_nowait(order)
        await daemon.until(lambda seen: any(isinstance(one, RunningReported) for one in seen))
        daemon.lost = ((order.job, order.attempt),)
        await daemon.until(lambda seen: isinstance(seen[-1], ExitReported))
        assert (daemon.seen[-1].outcome, daemon.seen[-1].reason) == ("preempted", "the pool had given its slots away")

    with_agent(story, ping_s=0.05)


def test_an_order_to_launch_that_came_too_late_starts_nothing(pool_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", fake_engine.install(tmp_path / "dist"))
    order = replace(launch(paths.jobs_dir() / "job", Script(), python=sys.executable), lease_s=60.0)

    async def story(daemon):
        daemon.lost = ((order.job, order.attempt),)
        daemon.sent.put_nowait(order)
        await daemon.until(lambda seen: seen)
        assert daemon.seen[-1].outcome == "lost"
        assert AttemptFolder.of(order.spec.folder, 1).record() is None

    with_agent(story)


def test_an_agent_without_daemon_and_jobs_leaves(pool_dir):
    async def alone():
        async with AsyncClient(f"ipc://{pool_dir}/nobody", role="agent") as client, asyncio.timeout(60):
            await agent.Agent(client, leave_after_s=0.2, ping_s=0.05).run()

    paths.jobs_dir()
    asyncio.run(alone())


def test_an_agent_leaves_ten_minutes_after_the_last_answer(pool_dir):
    now, answers = 0.0, {0.0, 10.0, 300.0}
    record = endpoints.AgentRecord(pid=os.getpid(), start_time=0.0, package="", python="")

    class Silent(Daemon):
        async def ask(self, ask, timeout_s=None):
            if now not in answers:
                raise DaemonUnreachable("away")
            return await super().ask(ask)

    async def sleep(seconds):
        nonlocal now
        now += seconds
        await asyncio.sleep(0)

    private_files.write_json(paths.agent_file(), record)
    asyncio.run(agent.Agent(Silent(), monotonic=lambda: now, sleep=sleep).run())
    assert now == 300.0 + agent.DAEMON_GONE_S + agent.PING_S


def free(lock):
    """Whether others can share it now."""
    other = Lock(lock.path)
    shared = other.share(0.0)
    other.release()
    return shared


class Idle(Daemon):
    """A daemon for an agent whose clock goes on with its pauses; `jobs` of the user wait."""

    welcome = Welcome(version=1, package="", user="me", pool="/elsewhere", seq=0, policy="fifo", started_at=0.0)

    def __init__(self):
        super().__init__()
        self.now, self.jobs = 0.0, ()

    async def sleep(self, seconds):
        self.now += seconds
        await asyncio.sleep(0)

    async def ask(self, ask, timeout_s=None):
        if isinstance(ask, ListJobs):
            assert ask.owner == "me"
            return Jobs(jobs=self.jobs, seq=0)
        return await super().ask(ask)

    def run(self, until=lambda: False):
        """Run an agent until it leaves, or until this holds; whether it has left, and its lock of those who need it."""
        clients = Lock(paths.clients_lock())

        async def live():
            def clock():
                if until():
                    task.cancel()
                return self.now

            watched = agent.Agent(self, monotonic=clock, sleep=self.sleep, clients=clients)
            task = asyncio.create_task(watched.run())
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(ended, Exception):
                raise ended
            return not task.cancelled()

        async def limited():
            async with asyncio.timeout(60):
                return await live()

        return asyncio.run(limited()), clients


def test_an_agent_with_nothing_to_do_and_nobody_there_leaves_after_a_quarter_of_an_hour(pool_dir):
    daemon = Idle()
    left, clients = daemon.run()
    assert left
    assert agent.IDLE_S == 900 <= daemon.now <= agent.IDLE_S + 2 * agent.PING_S
    assert not free(clients), "who comes now waits until it has gone"
    clients.release()
    assert free(clients)


def test_an_agent_stays_as_long_as_a_process_of_its_user_may_need_it(pool_dir):
    daemon, kernel = Idle(), Lock(paths.clients_lock())
    assert kernel.share(0.0)

    def later():
        if daemon.now > 3 * agent.IDLE_S:
            kernel.release()
        return False

    left, _ = daemon.run(later)
    assert left
    assert daemon.now > 3 * agent.IDLE_S


def test_an_agent_stays_as_long_as_a_job_of_its_user_waits(pool_dir):
    spec = JobSpec(name="n", folder="/x", python="p", min_slots=1, max_slots=1)
    daemon = Idle()
    daemon.jobs = (JobInfo(job=1, owner="me", spec=spec, phase="queued", submitted_at=0.0),)
    left, clients = daemon.run(lambda: daemon.now > 3 * agent.IDLE_S)
    assert not left
    assert free(clients), "nobody waits for an agent that stays"


def test_an_agent_whose_pool_was_removed_leaves_without_waiting(pool_dir):
    class Gone(Daemon):
        async def ask(self, ask, timeout_s=None):
            raise DaemonUnreachable("away")

    async def alone():
        paths.jobs_dir()
        watched = agent.Agent(Gone(), leave_after_s=10_000.0, ping_s=0.05)
        task = asyncio.create_task(watched.run())
        await asyncio.sleep(0)
        shutil.rmtree(pool_dir)
        async with asyncio.timeout(60):
            await task

    asyncio.run(alone())
