"""The daemon as its clients see it, over the real socket."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jupyter_elastic.client import AsyncClient, services
from jupyter_elastic.platform import detached, endpoints, paths, processes
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import user_name
from jupyter_elastic.types import (
    AgentChanged,
    AgentOrigin,
    Event,
    ExitReported,
    JobEnded,
    JobInfo,
    JobRequeued,
    JobRunning,
    JobSpec,
    JobStarted,
    JobSubmitted,
    Launch,
    PlanAccepted,
    PolicyUsed,
    Progress,
    ProgressReported,
    RunningReported,
    Stop,
)
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable, NotAllowed, NotFound, ProtocolError

ME = user_name(os.getuid())


def until(client, job, kind) -> Event:
    """The first event of this kind of a job."""
    for event in client.events(0, job):
        if isinstance(event.data, kind) and getattr(event.data, "job", None) == job:
            return event
    raise AssertionError("the stream ended")


def until_the_agent_is_gone(client) -> None:
    for event in client.events(0):
        if isinstance(event.data, AgentChanged) and not event.data.connected:
            return


def test_submit_list_explain_cancel(pool, spec) -> None:
    client = pool.start().client()
    pool.agent()
    job = client.submit(spec, "key 1")
    assert client.submit(spec, "key 1") == job
    assert client.submit(spec, "key 2") == job + 1
    assert client.welcome.user == ME
    assert [info.job for info in client.jobs()] == [job, job + 1]
    assert client.jobs(job=job)[0].owner == ME
    assert f"Job {job}" in client.ask(wire.ExplainJob(job=job)).text
    assert len(client.ask(wire.ListHosts()).slots) == 4
    assert isinstance(client.ask(wire.CancelJob(job=job + 1, reason="no longer needed")), wire.Done)
    until(client, job, JobStarted)
    with pytest.raises(NotFound, match="no job 77"):
        client.ask(wire.CancelJob(job=77))
    with pytest.raises(BadRequest, match="has 4"):
        client.submit(
            JobSpec(**{**{f: getattr(spec, f) for f in spec.__struct_fields__}, "min_slots": 5, "max_slots": 9})
        )


def test_another_protocol_is_refused_with_what_to_do(pool) -> None:
    client = pool.start().client()
    with pytest.raises(ProtocolError, match="install the same version"):
        client.ask(wire.Hello(version=wire.VERSION + 1))
    with pytest.raises(BadRequest, match="agent and client"):
        client.ask(wire.Hello(version=wire.VERSION, role="king"))


def test_a_switch_of_policy_is_checked_and_the_old_one_stands(pool) -> None:
    client = pool.start().client()
    with pytest.raises(NotFound, match=r"there are .*fifo.*did you mean fifo"):
        client.ask(wire.SwitchPolicy(name="fifoo"))
    with pytest.raises(BadRequest, match=r"its options are .*backfill"):
        client.ask(wire.SwitchPolicy(name="fifo", options={"colour": "red"}))
    with pytest.raises(BadRequest, match=r"its options are .*backfill"):
        client.ask(wire.SwitchPolicy(name="fifo", options={"backfill": 7}))
    active = [info for info in client.ask(wire.ListPolicies()).policies if info.active]
    assert [(info.name, info.options["backfill"]) for info in active] == [("fifo", "none")]
    client.ask(wire.SwitchPolicy(name="fifo", options={"backfill": "easy"}, reason="try it"))
    active = [info for info in client.ask(wire.ListPolicies()).policies if info.active]
    assert [(info.name, info.options["backfill"]) for info in active] == [("fifo", "easy")]
    switched = next(event for event in client.events() if isinstance(event.data, PolicyUsed))
    assert switched.data.reason == "try it"
    assert switched.by == ME


def test_a_second_daemon_says_so_and_exits_3(pool) -> None:
    pool.start()
    second = subprocess.run(
        [sys.executable, "-m", "jupyter_elastic.scheduler"],
        check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert second.returncode == 3
    assert f"pid {pool.process.pid}" in second.stderr
    assert "already serves" in second.stderr
    assert pool.client().ask(wire.Ping()) == wire.Done()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--slots", "0"], "from 1 to"),
        (["--hosts", "/nowhere.json"], "expected a list of hosts"),
        (["--policy", "nosuch"], "there is no policy"),
        (["--tcp", "tcp://127.0.0.1:0", "--keys", "/nowhere.txt"], "table /nowhere.txt can't be read"),
        (["--tcp", "udp://x"], "expected tcp://"),
        (["--socket", "/tmp/" + "x" * 120], "100 bytes"),
        (["--keep-days", "-1"], "expected numbers from 0 on"),
    ],
)
def test_wrong_options_are_named(pool_dir: Path, arguments: list[str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_elastic.scheduler", *arguments],
        check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert done.returncode in (1, 2), done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pool_of_two_hosts_is_refused_at_the_start(pool_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_text('[{"name": "lab1", "slots": 1}, {"name": "lab2", "slots": 1}]')
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_elastic.scheduler", "--hosts", str(path)],
        check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert done.returncode in (1, 2), done.stderr
    assert "these are 2: lab1, lab2. All workers would run where their user's agent is" in done.stderr
    assert "jupyter elastic host add" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_agent_elsewhere_is_not_heard(pool, spec) -> None:
    client = pool.start().client()

    async def agents() -> None:
        first, second = AsyncClient(role="agent"), AsyncClient(role="agent")
        first.hello = wire.Hello(
            version=wire.VERSION, role="agent", place=AgentOrigin(place="here", description="here")
        )
        second.hello = wire.Hello(version=wire.VERSION, role="agent", place=AgentOrigin(place="there"))
        async with first:
            job = await first.submit(spec)
            assert isinstance(await asyncio.wait_for(anext(first.orders()), 60), Launch)
            second.start()
            with pytest.raises(
                NotAllowed, match=r"another one \(here\); it is connected, and only it can see what runs"
            ):
                await second.ask(wire.ReportArrived(report=_failed(job)))
            with pytest.raises(ProtocolError, match="only the user's agent may say that"):
                await second.ask(wire.ReportArrived(report=_failed(job)))
            assert client.jobs(job=job)[0].phase == "starting"
            await first.ask(wire.ReportArrived(report=_failed(job)))
            assert client.jobs(all=True, job=job)[0].phase == "failed"
            await second.close()

    asyncio.run(agents())


def _failed(job: int) -> ExitReported:
    return ExitReported(at=0, by="", id="x", job=job, attempt=1, outcome="failed")


def test_many_who_need_a_daemon_at_once_start_one(pool) -> None:
    with ThreadPoolExecutor(6) as many:
        answers = set(many.map(lambda _: services.ensure(agent=False), range(6)))
    assert len(answers) == 1
    assert detached.log_file("daemon").read_text().count("INFO jupyter_elastic.scheduler.daemon: pool ") == 1
    found = endpoints.living_daemon()
    client = pool.client()
    assert client.ask(wire.Shutdown()) == wire.Done()
    limit = time.monotonic() + 60
    while processes.alive(found.pid, found.start_time):
        assert time.monotonic() < limit
        time.sleep(0.02)
    with pytest.raises(DaemonUnreachable, match="jupyter elastic admin daemon"):
        services.ensure(start=False)


def test_nobody_there_is_said_in_time(pool_dir: Path, pool) -> None:
    client = pool.client(timeout_s=0.3)
    with pytest.raises(DaemonUnreachable, match="start one with `jupyter elastic admin daemon`"):
        client.ask(wire.Ping())


def test_a_jobs_events_begin_with_it_and_end_where_they_end(pool, spec) -> None:
    client = pool.start().client()
    _, second, _ = (client.submit(spec) for _ in range(3))

    async def story() -> list[Event]:
        seen: list[Event] = []
        async with AsyncClient() as follower:
            caught_up = asyncio.Event()

            async def read() -> None:
                async for event in follower.events(0, second, caught_up=caught_up.set):
                    seen.append(event)  # noqa: PERF401 - it never ends

            reading = asyncio.create_task(read())
            await asyncio.wait_for(caught_up.wait(), 60)
            reading.cancel()
        return seen

    seen = asyncio.run(story())
    assert isinstance(seen[0].data, JobSubmitted)  # and not the pool's beginnings
    assert {getattr(event.data, "job", second) for event in seen} == {second}


def test_a_client_outlives_the_daemon(pool, spec) -> None:
    """It asks again what was not answered, and its events go on without gap or repeat."""
    client = pool.start().client()
    seen: list[Event] = []
    enough = threading.Event()

    def follow() -> None:
        for event in client.events(0):
            seen.append(event)
            if isinstance(event.data, JobSubmitted) and event.cause == "last":
                enough.set()
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    first = client.submit(spec)
    for number in range(2):
        pool.kill()
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(client.submit, spec, f"while it was away {number}")
            pool.start()
            assert waiting.result(60) == first + number + 1
    client.submit(spec, "last")
    assert enough.wait(60)
    thread.join(60)
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert sum(isinstance(event.data, JobSubmitted) for event in seen) == 4


def test_books_are_the_same_after_a_restart(pool, spec) -> None:
    client = pool.start().client()
    pool.agent()
    jobs = [client.submit(spec) for _ in range(6)]
    client.ask(wire.CancelJob(job=jobs[-1]))
    until(client, jobs[3], JobStarted)
    for event in client.events(0):  # until the policy has spoken of the one that waits
        if isinstance(event.data, PlanAccepted) and str(jobs[4]) in event.data.reasons:
            break
    before: tuple[JobInfo, ...] = client.jobs(all=True)
    slots = client.ask(wire.ListHosts()).slots
    pool.kill()
    pool.start()
    assert client.jobs(all=True) == before
    assert client.ask(wire.ListHosts()).slots == slots
    assert pool.stop() == 0
    assert not paths.daemon_file().exists()


def test_an_agent_gets_its_orders_again_and_its_reports_are_heard(pool, spec) -> None:
    client = pool.start().client()
    job = client.submit(spec)

    async def agent() -> None:
        async with AsyncClient(role="agent") as mine:
            orders = mine.orders()
            launch = await asyncio.wait_for(anext(orders), 60)
            assert isinstance(launch, Launch)
            assert (launch.job, launch.attempt, launch.owner) == (job, 1, ME)
        async with AsyncClient(role="agent") as mine:  # a new one, after a crash
            orders = mine.orders()
            assert await asyncio.wait_for(anext(orders), 60) == launch
            slots = launch.slots
            said = {"at": 1e300, "by": "mallory", "id": "x", "job": job, "attempt": 1}
            await mine.ask(wire.ReportArrived(report=RunningReported(**said, generation=1, slots=slots)))
            await mine.ask(
                wire.ReportArrived(report=ProgressReported(**said, progress=Progress(step=3, metrics={"loss": 0.5})))
            )
            await mine.ask(wire.CancelJob(job=job))
            stop = await asyncio.wait_for(anext(orders), 60)
            assert isinstance(stop, Stop)
            await mine.ask(wire.ReportArrived(report=ExitReported(**said, outcome="cancelled")))

    asyncio.run(agent())
    running = until(client, job, JobRunning)
    assert running.by == ME, "the socket says who reports"
    assert abs(running.at - time.time()) < 300, "the daemon says when"
    assert until(client, job, JobEnded).data.outcome == "cancelled"
    assert client.jobs(job=job)[0].progress == Progress(step=3, metrics={"loss": 0.5})
    with pytest.raises(Exception, match="role agent"):
        client.ask(wire.ReportArrived(report=ExitReported(at=0, by="", id="", job=job, attempt=1, outcome="failed")))


def test_an_administrator_releases_what_nobody_speaks_for(pool, spec) -> None:
    client = pool.start().client()
    agent = pool.agent()
    job = client.submit(spec)
    until(client, job, JobStarted)
    agent.close()
    until_the_agent_is_gone(client)
    client.ask(wire.ReleaseJob(job=job, reason="the box has burnt"))
    event = until(client, job, JobRequeued)
    assert (event.by, event.data.reason) == (ME, f"released by {ME}: the box has burnt")
    with pytest.raises(BadRequest, match="is queued and holds no slots"):
        client.ask(wire.ReleaseJob(job=job))
    with pytest.raises(NotFound):
        client.ask(wire.ReleaseJob(job=77))

    async def agents() -> None:
        async with AsyncClient(role="agent") as mine:  # the job waited for it
            order = await asyncio.wait_for(anext(mine.orders()), 60)
            assert (order.job, order.attempt) == (job, 2)
            with pytest.raises(BadRequest, match=f"the agent of {ME} is there.* elastic job cancel {job}"):
                await mine.ask(wire.ReleaseJob(job=job))

    asyncio.run(agents())


def test_what_has_a_lease_is_not_released_before_its_end(pool, spec) -> None:
    client = pool.start("--lease", "500").client()
    agent = pool.agent()
    job = client.submit(spec)
    assert until(client, job, JobStarted).data.lease_s == 500
    agent.close()
    until_the_agent_is_gone(client)
    with pytest.raises(BadRequest, match=r"free in \d+ s, when its lease has run out"):
        client.ask(wire.ReleaseJob(job=job))


@pytest.mark.parametrize("lease", ["1", "-5", "nan", "1e9"])
def test_a_term_that_is_none_is_refused(pool_dir: Path, lease: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_elastic.scheduler", "--slots", "1", f"--lease={lease}"],
        check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert (done.returncode, "expected seconds from 2 to 86400, or 0" in done.stderr) == (2, True), done.stderr
