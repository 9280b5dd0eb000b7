"""A full disk and bad policies: the daemon lives on and says what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import time
from pathlib import Path

import pytest

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.platform import paths
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import ExitReported, JobEnded, JobStarted, PlanRejected, PolicyUsed
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable, JournalError
from tests.support.other_user import needs_root, other_user

from .test_service import until

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def fill_disk(pool) -> None:
    """From now on the daemon's files can't grow."""
    log = paths.state_dir() / "journal.sqlite-wal"
    resource.prlimit(pool.process.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, resource.RLIM_INFINITY))


def free_disk(pool) -> None:
    resource.prlimit(pool.process.pid, resource.RLIMIT_FSIZE, UNLIMITED)


def test_a_full_disk_refuses_submits_and_loses_nothing(pool, spec) -> None:
    client = pool.start().client()
    pool.agent()
    job = client.submit(spec)
    until(client, job, JobStarted)

    async def agent() -> None:
        async with AsyncClient(role="agent") as mine:
            await mine.ask(wire.Ping())
            fill_disk(pool)
            keys = [f"key {number}" for number in range(400)]
            answers = await asyncio.gather(*(mine.submit(spec, key) for key in keys), return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, JournalError)]
            assert refused, "the disk was not full"
            assert "is the disk full? Free some space" in str(refused[0])
            accepted = {key: answer for key, answer in zip(keys, answers, strict=True) if isinstance(answer, int)}
            assert len(accepted) + len(refused) == len(keys)
            shown = {info.job for info in await mine.jobs(limit=3000)}
            assert shown == {job, *accepted.values()}, "a refused submit is in the queue, or an accepted one is not"
            seen = ExitReported(at=0, by="", id="", job=job, attempt=1, outcome="completed")
            report = asyncio.create_task(mine.ask(wire.ReportArrived(report=seen)))
            with pytest.raises(JournalError):  # it goes out after the report, and is answered before it
                await asyncio.create_task(mine.submit(spec, "still full"))
            assert not report.done(), "a report that is not on disk must not be acknowledged"
            free_disk(pool)
            assert await report == wire.Done()
            for key, number in accepted.items():
                assert await mine.submit(spec, key) == number
            after = {key: await mine.submit(spec, key) for key in keys if key not in accepted}
            assert len({*after.values(), *accepted.values()}) == len(keys), "a number was handed out twice"

    asyncio.run(agent())
    assert until(client, job, JobEnded).data.outcome == "completed"
    before = client.jobs(all=True, limit=3000)
    pool.kill()
    pool.start()
    assert client.jobs(all=True, limit=3000) == before


def test_an_agent_that_comes_as_the_disk_is_full_is_refused_and_welcomed_later(pool, spec) -> None:
    client = pool.start().client()
    client.ask(wire.Ping())
    fill_disk(pool)

    async def agent() -> None:
        async with AsyncClient(role="agent") as mine, asyncio.timeout(60):
            with pytest.raises(JournalError, match="is the disk full"):
                await mine.submit(spec, "early")
            assert "is the disk full? Free some space" in mine.refusal
            assert mine.welcome is None
            free_disk(pool)
            mine.introduce()
            await mine.welcomed.wait()
            job = None
            while job is None:  # the daemon tries once a second whether it can write again
                with contextlib.suppress(JournalError):
                    job = await mine.submit(spec, "early")
            assert (await anext(mine.orders())).job == job

    asyncio.run(agent())


BAD = """
import sys, time
from msgspec import Struct
from jupyter_elastic.types import Plan, Size

class Base:
    name = "bad"
    summary = "Does something bad."
    work_conserving = False
    interval_s = None
    class Options(Struct, frozen=True):
        pass
    def __init__(self, options):
        pass

class Raises(Base):
    def plan(self, view):
        raise RuntimeError("no idea")

class Exits(Base):
    def plan(self, view):
        sys.exit(1)

class Loops(Base):
    def plan(self, view):
        while True:
            try:
                while True: pass
            except Exception:
                pass

class Sleeps(Base):
    def plan(self, view):
        time.sleep(3)

class Rubbish(Base):
    def plan(self, view):
        return {1: 2}

class Mistyped(Base):
    def plan(self, view):
        return Plan(sizes={"one": 2})

class Greedy(Base):
    def plan(self, view):
        return Plan(sizes={job.job: Size(1000) for job in view.jobs})

class Stranger(Base):
    def plan(self, view):
        return Plan(sizes={10**6: Size(1)})

class Formless:
    Options = Base.Options
    def __init__(self, options):
        pass

class Unmakeable(Base):
    def __init__(self, options):
        raise ValueError("not today")
"""
FAULTS = {
    "raises": "no idea", "exits": "SystemExit", "loops": "within 0.3 s", "sleeps": "within 0.3 s",
    "rubbish": "not a Plan", "mistyped": "sizes", "greedy": "1000", "stranger": "no unfinished job 1000000",
    "formless": "no attribute 'plan'",
}  # fmt: skip


@pytest.fixture
def plugins(tmp_path: Path) -> dict[str, str]:
    """An installed package of bad policies."""
    folder = tmp_path / "site"
    info = folder / "bad_policies-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "bad_policies.py").write_text(BAD)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad_policies\nVersion: 1.0\n")
    names = [*FAULTS, "unmakeable"]
    entries = (
        "".join(f"{name} = bad_policies:{name.capitalize()}\n" for name in names) + "gone = bad_policies:Nothing\n"
    )
    (info / "entry_points.txt").write_text(f"[jupyter_elastic.policies]\n{entries}")
    return {"PYTHONPATH": str(folder)}


def test_a_bad_policy_costs_its_plans_and_is_replaced(pool, spec, plugins) -> None:
    client = pool.start("--deadline", "0.3", env=plugins).client()
    pool.agent()
    for name in ("unmakeable", "gone"):
        with pytest.raises(BadRequest):
            client.ask(wire.SwitchPolicy(name=name))
    running = client.submit(spec)
    until(client, running, JobStarted)
    held = client.jobs(job=running)[0].slots
    shown = {info.name: info.summary for info in client.ask(wire.ListPolicies()).policies}
    assert "can't be used" in shown["gone"]
    since = client.ask(wire.ListJobs(limit=1)).seq
    for name, reason in FAULTS.items():
        client.ask(wire.SwitchPolicy(name=name))
        started = time.monotonic()
        assert isinstance(client.ask(wire.Ping()), wire.Done)
        assert time.monotonic() - started < 5, "the policy holds the daemon up"
        rejections = []
        for event in client.events(since):
            since = event.seq
            if isinstance(event.data, PlanRejected):
                rejections.append(event.data.reason)
            elif isinstance(event.data, PolicyUsed) and event.data.name == "fifo":
                assert event.data.previous == name
                break
        assert len(rejections) == 3
        assert all(reason in text for text in rejections), rejections
        assert client.jobs(job=running)[0].slots == held, "the present allocation stands"
    last = client.submit(spec)
    assert until(client, last, JobStarted).data.slots, "fifo works on"
    tasks = Path(f"/proc/{pool.process.pid}/task").iterdir()
    assert "".join(task.joinpath("children").read_text() for task in tasks) == "", "a bad policy's process lives on"
    pool.kill()
    pool.start("--deadline", "0.3", env=plugins)
    assert client.jobs(job=running)[0].slots == held


def test_a_policy_that_was_uninstalled_is_replaced_at_the_start(pool, spec, plugins) -> None:
    client = pool.start("--deadline", "60", env=plugins).client()
    pool.agent()
    client.ask(wire.SwitchPolicy(name="sleeps"))
    pool.kill()
    pool.start()
    job = client.submit(spec)
    until(client, job, JobStarted)
    active = [info.name for info in client.ask(wire.ListPolicies()).policies if info.active]
    assert active == ["fifo"]


def test_a_damaged_journal_is_named_and_nothing_is_overwritten(pool, spec) -> None:
    client = pool.start().client()
    client.submit(spec)
    assert pool.stop() == 0
    path = paths.state_dir() / "journal.sqlite"
    broken = path.read_bytes()[:5000]
    path.write_bytes(broken)
    with pytest.raises(AssertionError, match=r"(?s)is damaged.*Copy it to a safe place"):
        pool.start()
    assert path.read_bytes() == broken
    with pytest.raises(DaemonUnreachable):
        pool.client(timeout_s=0.2).ask(wire.Ping())


@needs_root
def test_status_and_jobs_say_to_everybody_that_the_journal_can_not_be_written(pool, spec, open_folder) -> None:
    client = pool.start("--socket", f"{open_folder}/s").client()
    there = {"JUPYTER_ELASTIC_ENDPOINT": f"ipc://{open_folder}/s"}
    client.submit(spec)
    fill_disk(pool)
    for number in range(400):
        with contextlib.suppress(JournalError):
            client.submit(spec, f"key {number}")
        if client.ask(wire.ReadMetrics()).problem:
            break
    with other_user() as other:
        for words in (["status"], ["jobs"], ["jobs", "--all"]):
            code, said, errors = other.elastic(*words, more=there)
            assert code == 0, errors
            assert "attention: " in said
            assert "can't be written" in said.replace("\n", " ")
        _, said, _ = other.elastic("top", "--once", more=there)
        assert said.startswith("The pool takes no jobs")
        _, said, _ = other.elastic("status", "--json", more=there)
        assert "can't be written" in json.loads(said)["problem"]
        free_disk(pool)
        limit = time.monotonic() + 60
        while client.ask(wire.ReadMetrics()).problem:  # the daemon tries once a second
            assert time.monotonic() < limit
            time.sleep(0.05)
        _, said, _ = other.elastic("status", more=there)
        assert "attention: " not in said
