"""The driver's judgement of orders and ends, without processes."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import sys

import msgspec
import pytest

from jupyter_elastic.driver.driver import Driver, load_engine
from jupyter_elastic.jobfiles import usage
from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder
from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.types import (
    ExitReported,
    JobSpec,
    Launch,
    Progress,
    ProgressReported,
    ReleaseReported,
    Rescale,
    RunningReported,
    Stop,
)
from jupyter_elastic.types.errors import EngineError

ABOUT = {"at": 5.0, "by": "me", "id": "x", "job": 3, "attempt": 1}


@pytest.fixture
def driver(tmp_path):
    spec = JobSpec(name="x", folder=str(tmp_path), python=sys.executable, min_slots=1, max_slots=4)
    launch = Launch(job=3, attempt=1, owner="me", spec=spec, generation=1, slots=("h:0", "h:1"))
    folder = AttemptFolder.of(tmp_path, 1)
    folder.create(launch)
    return Driver(folder, launch, tmp_path)


def rescale(generation, *slots, job=3, attempt=1, draining=()):
    return Rescale(job=job, attempt=attempt, owner="me", generation=generation, slots=slots, draining=draining)


def stop(how, reason=""):
    return Stop(job=3, attempt=1, owner="me", how=how, reason=reason)


def test_the_snapshot_is_what_still_matters(driver):
    assert driver.snapshot() == []
    driver.report(RunningReported(**ABOUT, generation=1, slots=("h:0", "h:1")))
    driver.report(RunningReported(**ABOUT, generation=2, slots=("h:0",)))
    driver.report(ReleaseReported(**ABOUT, slots=("h:1",)))
    running, released = driver.snapshot()
    assert running.generation == 2
    assert released.slots == ("h:1",)
    driver.accept(rescale(3, "h:0", "h:1"))
    assert [type(part) for part in driver.snapshot()] == [RunningReported]


def test_a_release_names_the_generation_that_the_engine_knew(driver):
    driver.report(ReleaseReported(**ABOUT, slots=("h:1",)))
    driver.report(ReleaseReported(**ABOUT, slots=("h:0",), generation=1))
    (released,) = driver.snapshot()
    assert released.generation == 1
    assert released.slots == ("h:1", "h:0")


@pytest.mark.parametrize("order", [rescale(1, "h:5"), rescale(9, "h:5", job=4), rescale(9, "h:5", attempt=2)])
def test_old_and_foreign_orders_change_nothing(driver, order):
    driver.accept(order)
    assert driver.orders.rescale is None


def test_after_a_stop_nothing_grows_and_a_harder_stop_wins(driver):
    driver.accept(stop("preempt", "others wait"))
    driver.accept(rescale(2, "h:5"))
    assert driver.orders.rescale is None
    driver.accept(stop("cancel", "by its owner"))
    driver.accept(stop("preempt"))
    assert driver.orders.stop == stop("cancel", "by its owner")


@pytest.mark.parametrize(
    ("how", "said", "outcome", "reason"),
    [
        ("", "completed", "completed", ""),
        ("", "failed", "failed", ""),
        ("cancel", "preempted", "cancelled", "r"),
        ("preempt", "preempted", "preempted", "r"),
        ("preempt", "completed", "completed", ""),
        ("time limit", "cancelled", "failed", "r"),
    ],
)
def test_the_end_is_judged_by_who_asked_for_it(driver, how, said, outcome, reason):
    if how:
        driver.accept(stop(how, "r"))
    driver.report(ExitReported(**ABOUT, outcome=said))
    assert (driver.reports.exit.outcome, driver.reports.exit.reason) == (outcome, reason)


def test_which_rank_waits_for_which_is_in_the_usage_file(driver, monkeypatch):
    class Waits:
        def __init__(self, context, report):
            self.report, self.calls, self.changed = report, 0, asyncio.Event()
            engines.append(self)

        async def launch(self, generation, slots, devices):
            pass

        def pids(self):
            return []

        def waits(self):
            self.calls += 1
            self.changed.set()
            return "rank 0 waits for rank 1"

    async def live():
        life = asyncio.create_task(driver.run(started.set))
        await started.wait()
        while not engines or engines[0].calls < 2:  # before it is asked again, the file is written
            await (engines[0].changed.wait() if engines else asyncio.sleep(0))
            engines[0].changed.clear()
        found = usage.read(JobFolder(driver.folder.job_folder))
        engines[0].report(ExitReported(**ABOUT, outcome="completed"))
        await life
        return found

    engines, started = [], asyncio.Event()
    monkeypatch.setattr("jupyter_elastic.driver.driver.load_engine", lambda _: Waits)
    monkeypatch.setattr("jupyter_elastic.driver.usage_sampler.EVERY_S", 0.01)
    assert asyncio.run(live()).waits == "rank 0 waits for rank 1"


def test_only_the_first_end_counts(driver):
    driver.report(ExitReported(**ABOUT, outcome="completed"))
    driver.report(ExitReported(**ABOUT, outcome="failed"))
    assert driver.reports.exit.outcome == "completed"


def test_every_progress_is_written_and_kept_for_the_next_agent(driver):
    for step, loss in ((1, 0.5), (2, math.nan)):
        driver.report(ProgressReported(**ABOUT, progress=Progress(step=step, metrics={"loss": loss})))
    lines = (driver.folder.job_folder / "progress.jsonl").read_text().splitlines()
    assert [msgspec.json.decode(line) for line in lines] == [
        {"at": 5.0, "attempt": 1, "step": 1, "metrics": {"loss": 0.5}},
        {"at": 5.0, "attempt": 1, "step": 2, "metrics": {"loss": None}},
    ]
    (newest,) = driver.snapshot()
    assert newest.progress.step == 2


def test_progress_that_can_not_be_written_is_reported_all_the_same(driver):
    (driver.folder.job_folder / "progress.jsonl").mkdir()
    driver.report(ProgressReported(**ABOUT, progress=Progress(step=1)))
    assert [part.progress.step for part in driver.snapshot()] == [1]


def test_what_was_granted_and_overtaken_is_given_back(driver):
    driver.accept(rescale(2, "h:0", "h:1", "h:2"))
    driver.accept(rescale(3, "h:0", draining=("h:1", "h:2")))
    order, unheard = driver.orders.take()
    assert (order.generation, unheard) == (3, ("h:2",))  # the engine has a process on h:1
    assert driver.orders.take() is None


def test_an_unknown_engine_is_named_with_the_known_ones():
    with pytest.raises(EngineError, match=r"no engine 'warp' .* installed: .*process"):
        load_engine("warp")


def test_an_engine_that_is_not_built_fails_at_once_with_what_to_run(driver, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)

    async def through():
        async with asyncio.timeout(20):
            await driver._run_engine()

    asyncio.run(through())
    assert driver.reports.exit.outcome == "failed"
    assert "build-horovod" in driver.reports.exit.reason
